"""A subword vocabulary: byte-pair encoding (Sennrich et al. 2016) on bytes (Radford et al. 2019)."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
SMALLEST = len(SPECIAL_TOKENS) + 256  # every byte is a token, so that any text can be written


class Vocabulary:
    """Turns text into token ids and back, without loss: `decode(encode(text)) == text` for every text.

    Train one on all languages together and share it (Vaswani et al. 2017, §5.1). Tokens are pieces of words; a word has
    the same tokens at the start of a sentence and inside it. `<bos>` and `<eos>` are not added: batching does that.
    """

    pad_id, bos_id, eos_id, unk_id = range(len(SPECIAL_TOKENS))

    def __init__(self, tokenizer) -> None:
        """Wrap a Hugging Face `tokenizers.Tokenizer`, as `train` and `load` make it."""
        if [tokenizer.id_to_token(token) for token in range(len(SPECIAL_TOKENS))] != list(SPECIAL_TOKENS):
            raise ValueError(f"tokens 0 to 3 must be {' '.join(SPECIAL_TOKENS)}; make it with Vocabulary.train")
        tokenizer.encode_special_tokens = True  # "<pad>" typed by a user is five characters, not padding
        self.tokenizer = tokenizer

    @classmethod
    def train(cls, sentences: Iterable[str], size: int) -> "Vocabulary":
        """Learn a vocabulary of `size` tokens; of fewer where `sentences` have too few repeated pairs to merge."""
        from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

        if size < SMALLEST:
            raise ValueError(f"size={size} is too small: 256 bytes and {len(SPECIAL_TOKENS)} marks need {SMALLEST}")
        sentences = list(sentences)
        if not any(sentences):
            raise ValueError(f"cannot learn a vocabulary from {len(sentences)} sentences without text; give some")
        tokenizer = Tokenizer(models.BPE())
        tokenizer.normalizer = normalizers.Prepend(" ")
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            min_frequency=2,
            show_progress=False,
        )
        tokenizer.train_from_iterator(sentences, trainer)
        return cls(tokenizer)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """The token ids of many texts; faster than one by one."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; special tokens are left out."""
        ids = [int(token) for token in ids]
        if wrong := [token for token in ids if not 0 <= token < len(self)]:
            raise ValueError(
                f"token {wrong[0]} is not in this vocabulary of {len(self)}: was it made with another one?"
            )
        kept = [token for token in ids if token >= len(SPECIAL_TOKENS)]
        return self.tokenizer.decode(kept, skip_special_tokens=False).removeprefix(" ")

    def token(self, token_id: int) -> str:
        """How one token reads; a space before a word shows as `▁`."""
        if token_id < len(SPECIAL_TOKENS):
            return SPECIAL_TOKENS[token_id]
        return self.tokenizer.decode([token_id], skip_special_tokens=False).replace(" ", "▁")

    def save(self, path: str | os.PathLike) -> None:
        """Write the vocabulary as JSON (Hugging Face's `tokenizer.json`): whole, or not at all."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.partial")
        try:
            partial.write_text(self.tokenizer.to_str(pretty=True), encoding="utf-8")
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Vocabulary":
        """Read what `save` wrote."""
        from tokenizers import Tokenizer

        if not Path(path).is_file():
            raise FileNotFoundError(
                f"no vocabulary at {path}; train one with Vocabulary.train(sentences, size).save(path)"
            )
        try:
            return cls(Tokenizer.from_str(Path(path).read_text(encoding="utf-8")))
        except Exception as error:  # tokenizers raises plain Exception
            reason = str(error).partition("\n")[0]
            raise ValueError(f"{path} is not a vocabulary ({reason}); restore it or train it again") from None

    def to_dict(self) -> dict:
        """What `save` writes, as plain numbers and strings."""
        return json.loads(self.tokenizer.to_str())

    @classmethod
    def from_dict(cls, content: dict) -> "Vocabulary":
        """The vocabulary that `to_dict` gave."""
        from tokenizers import Tokenizer

        return cls(Tokenizer.from_str(json.dumps(content)))

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} tokens)"
