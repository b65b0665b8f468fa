"""The tokenizer that comes with a checkpoint."""

from pathlib import Path

from .bpe import BytePairEncoder

GPT2_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))


class PretrainedTokenizer:
    """A `tokenizer.json`, run by the `tokenizers` library.

    Texts keep their lengths: whether to pad or to cut is the caller's business, whatever the file says.

    Args:
        tokenizer: a `tokenizers.Tokenizer`.
    """

    def __init__(self, tokenizer):
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self.tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """The text's tokens, with those that the model expects around it."""
        return self.tokenizer.encode(text).ids

    def decode(self, ids: list[int]) -> str:
        """The text of these tokens, without special ones."""
        return self.tokenizer.decode(ids)

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()


def load_tokenizer(folder: str | Path) -> PretrainedTokenizer | BytePairEncoder:
    """The tokenizer in a checkpoint's folder: `tokenizer.json`, or GPT-2's two files.

    Raises:
        ValueError: when there is none, or it is broken.
    """
    folder = Path(folder)
    if (folder / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        try:
            return PretrainedTokenizer(Tokenizer.from_file(str(folder / "tokenizer.json")))
        except Exception as error:  # the library raises no narrower one
            raise ValueError(f"{folder / 'tokenizer.json'} is damaged ({error}); copy it again") from None
    for vocabulary, merges in GPT2_FILES:
        if (folder / vocabulary).is_file() and (folder / merges).is_file():
            return BytePairEncoder.from_gpt2(folder / vocabulary, folder / merges)
    raise ValueError(f"{folder} has no tokenizer.json, nor GPT-2's {' and '.join(GPT2_FILES[0])}; copy them into it")
