"""The tokenizer of a model: one class for those that come with checkpoints and those that are learned here."""

import json
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from txlib.files import write_atomically
from txlib.models.stored import CONFIG, find_folder, read_json
from txlib.paths import optional_package
from txlib.text.bpe import BytePairEncoder
from txlib.text.bpe_files import to_bytes

GPT2_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
BYTE_MARKS = ("[PAD]", "[BOS]", "[EOS]", "[MASK]", "[CLS]", "[SEP]")  # tokens 0 to 5 of `byte_tokenizer`
MARKS = ("<pad>", "<bos>", "<eos>", "<unk>")  # tokens 0 to 3 of what `Tokenizer.train` learns


class Tokenizer:
    """Text to token ids and back: a `tokenizer.json`, run by the `tokenizers` library.

    Texts keep their lengths: whether to pad or to cut is the caller's business, whatever the file says.

    Args:
        tokenizer: a `tokenizers.Tokenizer`.
    """

    def __init__(self, tokenizer):
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self.tokenizer = tokenizer

    @classmethod
    def train(cls, sentences: Iterable[str], size: int) -> "Tokenizer":
        """Learn byte-pair encoding (Sennrich et al. 2016) on bytes (Radford et al. 2019) for sentences.

        Train one on all languages together and share it (Vaswani et al. 2017, §5.1). A word has the same tokens at the
        start of a sentence and inside it. Tokens 0 to 3 are <pad>, <bos>, <eos> and <unk>; `encode` adds none of them:
        batching does that. Nothing is lost: `decode(encode(text)) == text`, with `special_tokens=False` for every text.

        Args:
            size: tokens in all; fewer where `sentences` have too few repeated pairs to merge.

        Raises:
            ValueError: where the size has no room for the bytes and marks, or the sentences hold no text.
        """
        with optional_package():
            from tokenizers import Tokenizer as Fast
            from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

        smallest = len(MARKS) + 256  # every byte is a token, so that any text can be written
        if size < smallest:
            raise ValueError(f"size={size} is too small: 256 bytes and {len(MARKS)} marks need {smallest}")
        sentences = list(sentences)
        if not any(sentences):
            raise ValueError(f"cannot learn a vocabulary from {len(sentences)} sentences without text; give some")
        tokenizer = Fast(models.BPE())
        tokenizer.normalizer = normalizers.Prepend(" ")
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=list(MARKS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            min_frequency=2,
            show_progress=False,
        )
        tokenizer.train_from_iterator(sentences, trainer)
        return cls(tokenizer)

    @classmethod
    def of(cls, encoder: BytePairEncoder) -> "Tokenizer":
        """The same tokens and ids as those of an encoder of lesson 01, faster."""
        return cls.from_dict(encoder.to_dict())

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """The text's tokens, with those that the model expects around it.

        Args:
            special_tokens: False adds nothing, and what reads like a special token is ordinary text: use it for what
                users type.
        """
        self.tokenizer.encode_special_tokens = not special_tokens
        return self.tokenizer.encode(text, add_special_tokens=special_tokens).ids

    def encode_batch(self, texts: Iterable[str], *, special_tokens: bool = True) -> list[list[int]]:
        """The tokens of many texts; faster than one by one."""
        self.tokenizer.encode_special_tokens = not special_tokens
        encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=special_tokens)
        return [encoding.ids for encoding in encodings]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The tokens of ordinary text, and from where to where each stands in it, without a space before it."""
        self.tokenizer.encode_special_tokens = True
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, [(end - len(text[start:end].lstrip()), end) for start, end in encoding.offsets]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these tokens, without special ones.

        Raises:
            ValueError: for an id that no token has.
        """
        ids = [int(token) for token in ids]
        if wrong := [token for token in ids if not 0 <= token < len(self)]:
            raise ValueError(
                f"token {wrong[0]} is not in this vocabulary of {len(self)}: was it made with another one?"
            )
        return self.tokenizer.decode(ids)

    def token(self, token_id: int) -> str:
        """How one token reads; a space before a word shows as `▁`, half a character as `�`."""
        if token_id in self.special_tokens.values() or not self.of_bytes:
            return self.tokenizer.id_to_token(token_id)
        return self.token_bytes(token_id).decode(errors="replace").replace(" ", "▁")

    def token_bytes(self, token_id: int) -> bytes:
        """What one token is made of, where tokens are made of bytes."""
        return to_bytes(self.tokenizer.id_to_token(token_id))

    @cached_property
    def of_bytes(self) -> bool:
        """Whether tokens are made of bytes, as GPT-2's are, and not of characters."""
        return "ByteLevel" in str(self.tokenizer.pre_tokenizer)

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Marks such as <pad> or [SEP], with their ids."""
        added = self.tokenizer.get_added_tokens_decoder()
        return {token.content: token_id for token_id, token in sorted(added.items()) if token.special}

    def mark(self, *names: str) -> int:
        """The id of the first of these special tokens that there is.

        Raises:
            ValueError: when there is none.
        """
        for name in names:
            token_id = self.tokenizer.token_to_id(name)
            if token_id is not None:
                return token_id
        raise ValueError(f"the tokenizer has no {' or '.join(names)}; is it another model's?")

    @property
    def pad_id(self) -> int:
        return self.mark("<pad>", "[PAD]")

    @property
    def bos_id(self) -> int:
        return self.mark("<bos>", "<s>", "[CLS]")

    @property
    def eos_id(self) -> int:
        return self.mark("<eos>", "</s>", "[SEP]")

    def save(self, path: str | os.PathLike) -> None:
        """Write a `tokenizer.json`: whole, or not at all."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, self.tokenizer.to_str(pretty=True))

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Tokenizer":
        """Read a `tokenizer.json`.

        Raises:
            FileNotFoundError: it is not there.
            ValueError: it is damaged.
        """
        with optional_package():
            from tokenizers import Tokenizer as Fast

        if not Path(path).is_file():
            raise FileNotFoundError(f"no tokenizer at {path}; give the tokenizer.json of a model's folder")
        try:
            return cls(Fast.from_str(Path(path).read_text(encoding="utf-8")))
        except Exception as error:  # the library raises no narrower one
            reason = str(error).partition("\n")[0]
            raise ValueError(f"{path} is damaged ({reason}); copy it again") from None

    def to_dict(self) -> dict[str, Any]:
        """What `save` writes, as plain numbers and strings."""
        return json.loads(self.tokenizer.to_str())

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Tokenizer":
        """The tokenizer that `to_dict` gave."""
        with optional_package():
            from tokenizers import Tokenizer as Fast

        return cls(Fast.from_str(json.dumps(content)))

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def __repr__(self) -> str:
        return f"Tokenizer({len(self)} tokens, {len(self.special_tokens)} of them special)"


def byte_tokenizer() -> Tokenizer:
    """UTF-8 bytes as tokens, after six marks, as Perceiver IO reads text (Jaegle et al. 2022, §4.1): 262 in all, with
    the ids of `transformers.PerceiverTokenizer`. A text is [CLS], its bytes, [SEP].
    """
    with optional_package():
        from tokenizers import processors

    tokens = {bytes([byte]): byte + len(BYTE_MARKS) for byte in range(256)}
    marks = {mark: number for number, mark in enumerate(BYTE_MARKS)}
    tokenizer = Tokenizer.of(BytePairEncoder(tokens, [], marks))
    tokenizer.tokenizer.post_processor = processors.BertProcessing(
        *((mark, marks[mark]) for mark in ("[SEP]", "[CLS]"))
    )
    return tokenizer


def load_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer of a model, in its folder or on the Hugging Face hub: `tokenizer.json`, or GPT-2's two files, or
    none for a Perceiver: it reads bytes.

    Raises:
        ValueError: when there is none, or it is broken.
    """
    folder = find_folder(source)
    if (folder / "tokenizer.json").is_file():
        return Tokenizer.load(folder / "tokenizer.json")
    for vocabulary, merges in GPT2_FILES:
        if (folder / vocabulary).is_file() and (folder / merges).is_file():
            return Tokenizer.of(BytePairEncoder.from_gpt2(folder / vocabulary, folder / merges))
    if (folder / CONFIG).is_file() and read_json(folder / CONFIG).get("model_type") == "perceiver":
        return byte_tokenizer()  # which needs no file, and comes with none
    raise ValueError(f"{folder} has no tokenizer.json, nor GPT-2's {' and '.join(GPT2_FILES[0])}; copy them into it")
