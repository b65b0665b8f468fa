"""Byte-level byte-pair encoding, from scratch (Sennrich et al. 2016, §3.2; on bytes: Radford et al. 2019, §2.2).

Text is cut into pieces, about words; a piece starts as its bytes, and pairs of tokens that are often neighbors are
joined into one. Nothing is ever unknown: what has no longer token is written in single bytes.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor

from txlib.files import write_atomically
from txlib.paths import optional_package
from txlib.text.bpe_files import read_gpt2, read_tokenizer_json, tokenizer_json
from txlib.text.merges import GPT2_PATTERN, Pair, merge, train_merges

BLOCK = 1 << 16  # characters that `encode_iterable` looks at together
LOOKAHEAD = 3  # characters behind a piece that may still change it: the longest of 's 'll 've
REMEMBERED = 1 << 16, 32  # pieces whose tokens `encode` keeps in mind, and the longest that it keeps

Ids = Iterable[int] | Int[Tensor, "length"]


class BytePairEncoder:
    """Turns text into token ids and back, without loss: `decode(encode(text)) == text`, for bytes `decode_bytes`.

    Args:
        tokens: each token's bytes and its id; a text that has a byte without a token cannot be encoded.
        merges: the pairs that are joined, the first learned first.
        special_tokens: marks such as `<|endoftext|>`, with their ids; where two of them overlap, the longer counts.
        pattern: cuts text into pieces, in the syntax of the package `regex`; no token reaches over a cut.

    Raises ValueError for a pattern that is none, an id that stands for two tokens, a merge of tokens without an id.
    """

    def __init__(
        self,
        tokens: Mapping[bytes, int],
        merges: Sequence[Pair],
        special_tokens: Mapping[str, int] | None = None,
        pattern: str = GPT2_PATTERN,
    ) -> None:
        with optional_package():
            import regex  # Python's own re does not know \p{L}

        self.tokens, self.merges, self.special_tokens = dict(tokens), list(merges), dict(special_tokens or {})
        self.pattern = pattern
        try:
            self._pieces = regex.compile(rf"{pattern}|(?s:.)").findall  # what the pattern leaves out is kept
        except regex.error as error:
            raise ValueError(f"pattern {pattern!r} is not a regular expression: {error}") from None
        if regex.compile(pattern).groups:
            raise ValueError(f"pattern {pattern!r} has groups that capture; write (?:…) instead of (…)")
        if "" in self.special_tokens:
            raise ValueError("a special token cannot be empty text")
        longest_first = sorted(self.special_tokens, key=len, reverse=True)
        self._special = regex.compile(f"({'|'.join(map(regex.escape, longest_first)) or '(?!)'})")
        self._longest_special = len(longest_first[0]) if longest_first else 0

        self._bytes = {token_id: token for token, token_id in self.tokens.items()}
        for text, token_id in self.special_tokens.items():
            if token_id in self._bytes or text.encode() in self.tokens:
                raise ValueError(f"special token {text!r} (id {token_id}) is also an ordinary token; choose another")
            self._bytes[token_id] = text.encode()
        if len(self._bytes) != len(self.tokens) + len(self.special_tokens):
            twice, _ = Counter([*self.tokens.values(), *self.special_tokens.values()]).most_common(1)[0]
            raise ValueError(f"id {twice} stands for two tokens; give each its own")
        self._merge: dict[tuple[int, int], tuple[int, int]] = {}  # a pair of ids -> (rank, id of both together)
        for rank, (left, right) in enumerate(self.merges):
            for token in (left, right, left + right):
                if token not in self.tokens:
                    raise ValueError(f"merge {rank}, {left!r} + {right!r}, needs the token {token!r}, which has no id")
            pair = self.tokens[left], self.tokens[right]
            self._merge.setdefault(pair, (rank, self.tokens[left + right]))
        self._single = [self.tokens.get(bytes([byte])) for byte in range(256)]
        self._known = _Known(self)

    @classmethod
    def train(
        cls, texts: Iterable[str], vocab_size: int, special_tokens: Sequence[str] = (), *, pattern: str = GPT2_PATTERN
    ) -> "BytePairEncoder":
        """Learn merges from texts, one after another; none is kept.

        Ids: the 256 bytes, the merges in the order learned, the special tokens. `vocab_size` counts all three; the
        vocabulary is smaller where the texts have no further pair. Special tokens in the texts are left out.

        Raises ValueError where `vocab_size` has no room for the bytes and special tokens, or the texts are empty.
        """
        if isinstance(texts, str):
            raise ValueError("texts is one str, which would be read letter by letter; give a list: [text]")
        special_tokens = list(dict.fromkeys(special_tokens))
        if vocab_size < 256 + len(special_tokens):
            raise ValueError(
                f"vocab_size={vocab_size} is too small: 256 bytes and {len(special_tokens)} special tokens need "
                f"{256 + len(special_tokens)}"
            )
        alphabet = {bytes([byte]): byte for byte in range(256)}
        cut = cls(alphabet, [], {text: 256 + i for i, text in enumerate(special_tokens)}, pattern)
        pieces: Counter[str] = Counter()
        for text in texts:
            for part in cut._special.split(well_formed(text))[::2]:  # without the special tokens
                pieces.update(cut._pieces(part))
        if not pieces:
            raise ValueError("cannot learn merges: the texts are empty; give some text")
        words = {piece.encode(): number for piece, number in pieces.items()}
        merges = train_merges(words, vocab_size - 256 - len(special_tokens))
        tokens = [*alphabet, *(left + right for left, right in merges)]
        special = {text: len(tokens) + i for i, text in enumerate(special_tokens)}
        return cls({token: i for i, token in enumerate(tokens)}, merges, special, pattern)

    def encode(self, text: str | bytes, *, special_tokens: bool = True, errors: str = "replace") -> list[int]:
        """The token ids of a text, or of any bytes.

        With `special_tokens=False`, what reads like a special token is ordinary text: use it for what users type.
        A lone surrogate is no character and has no bytes: it becomes U+FFFD, or with `errors="strict"` a ValueError.
        Bytes are kept as they are, UTF-8 or not (a surrogate stands for such a byte meanwhile).

        Raises:
            TypeError: it is no text; for a list of them, encode each.
        """
        if not isinstance(text, str | bytes):
            raise TypeError(f"encode takes one text, got {text!r:.60}; several: [encode(each) for each in texts]")
        text = text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else well_formed(text, errors)
        parts = self._special.split(text) if special_tokens and self.special_tokens else [text]
        ids: list[int] = []
        for i, part in enumerate(parts):
            if i % 2:  # the split puts special tokens between ordinary parts
                ids.append(self.special_tokens[part])
            else:
                ids.extend(chain.from_iterable(map(self._known.__getitem__, self._pieces(part))))
        return ids

    def encode_iterable(
        self, chunks: Iterable[str], *, special_tokens: bool = True, errors: str = "replace"
    ) -> Iterator[int]:
        """The token ids of a text that comes in chunks, e.g. an open file; the text is never held as a whole.

        Gives what `encode` gives for all chunks together, wherever they are cut.
        """
        held, size, enough = [], 0, BLOCK
        for chunk in chunks:
            held.append(chunk)
            size += len(chunk)
            if size >= enough:
                text = "".join(held)
                cut = self._last_cut(text, special_tokens)
                yield from self.encode(text[:cut], special_tokens=special_tokens, errors=errors)
                held, size = [text[cut:]], len(text) - cut
                enough = size + max(BLOCK, size)  # doubled, so that one endless word does not take quadratic time
        yield from self.encode("".join(held), special_tokens=special_tokens, errors=errors)

    def _last_cut(self, text: str, special_tokens: bool) -> int:
        """The last place where `text` may be cut: no text that follows changes the tokens before it."""
        start, limit = 0, len(text)
        if special_tokens and self.special_tokens:
            limit = max(0, limit - self._longest_special + 1)  # from here on, one may have begun
            for match in self._special.finditer(text):
                if match.start() >= limit:
                    break
                start = match.end()
        limit = len(text[:limit].rstrip()) - LOOKAHEAD
        cut = end = start
        for piece in self._pieces(text[start:]):
            end += len(piece)
            if end > limit:
                break
            if not piece[-1].isspace():  # a run of spaces is cut by what follows
                cut = end
        return cut

    def decode(self, ids: Ids, *, errors: str = "replace", skip_special_tokens: bool = False) -> str:
        """The text of token ids.

        Bytes that are no character, such as half of one at the end, read as U+FFFD; with `errors="strict"` they are a
        ValueError that names them.
        """
        if skip_special_tokens:
            special = set(self.special_tokens.values())
            ids = [token for token in _plain(ids) if token not in special]
        data = self.decode_bytes(ids)
        try:
            return data.decode("utf-8", _known_errors(errors))
        except UnicodeDecodeError as error:
            wrong = " ".join(f"0x{byte:02x}" for byte in data[error.start : error.end])
            raise ValueError(
                f"byte {error.start} of the decoded text, {wrong}, is not UTF-8 ({error.reason}); "
                'errors="replace" writes U+FFFD there'
            ) from None

    def decode_bytes(self, ids: Ids) -> bytes:
        """The bytes of token ids, exactly."""
        try:
            return b"".join(map(self._bytes.__getitem__, _plain(ids)))
        except KeyError as error:
            raise ValueError(
                f"token {error.args[0]} is not in this vocabulary of {len(self)}: was it made with another one?"
            ) from None

    def token(self, token_id: int) -> str:
        """How one token reads; a space shows as `▁`, half a character as `�`."""
        return self.decode([token_id]).replace(" ", "▁")

    def save(self, path: str | os.PathLike) -> None:
        """Write it as Hugging Face's `tokenizer.json`, which a human, `load` and `tokenizers` can read."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(self.to_dict(), ensure_ascii=False, indent=1))

    def to_dict(self) -> dict[str, Any]:
        """What `save` writes."""
        return tokenizer_json(self.tokens, self.merges, self.special_tokens, self.pattern)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "BytePairEncoder":
        """Read what `save` wrote, or another `tokenizer.json` that is byte-level BPE, e.g. GPT-2's or Llama 3's."""
        return cls(*read_tokenizer_json(path))

    @classmethod
    def from_gpt2(cls, encoder_json: str | os.PathLike, vocab_bpe: str | os.PathLike) -> "BytePairEncoder":
        """GPT-2's own two files: `encoder.json` (ids) and `vocab.bpe` (merges), in some places called `vocab.json`
        and `merges.txt`.
        """
        return cls(*read_gpt2(encoder_json, vocab_bpe))

    def __len__(self) -> int:
        """The number of ids that an embedding needs: the greatest id and one."""
        return max(self._bytes) + 1

    def __repr__(self) -> str:
        return f"BytePairEncoder({len(self)} tokens, {len(self.special_tokens)} of them special)"


class _Known(dict):
    """Pieces of text -> their token ids. A piece is worked out when it is first seen: words come again and again."""

    def __init__(self, encoder: BytePairEncoder) -> None:
        super().__init__()
        self.single, self.merge = encoder._single, encoder._merge

    def __missing__(self, piece: str) -> list[int]:
        pieces, longest = REMEMBERED
        if len(self) >= pieces:
            self.clear()
        ids = []
        for byte in piece.encode("utf-8", "surrogateescape"):
            if (token_id := self.single[byte]) is None:
                raise ValueError(f"byte 0x{byte:02x} (in {piece!r}) has no token in this vocabulary; add it to tokens")
            ids.append(token_id)
        ids = merge(ids, self.merge)
        if len(piece) <= longest:
            self[piece] = ids
        return ids


def well_formed(text: str, errors: str = "replace") -> str:
    """The text without lone surrogates (halves of a UTF-16 character): each becomes U+FFFD, or an error if "strict"."""
    _known_errors(errors)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if errors == "strict":
            raise ValueError(
                f"character {error.start} of the text, U+{ord(text[error.start]):04X}, is a lone surrogate and has "
                'no UTF-8 bytes; errors="replace" takes U+FFFD for it'
            ) from None
        return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    return text


def _known_errors(errors: str) -> str:
    if errors not in ("replace", "strict"):
        raise ValueError(f"errors={errors!r} is unknown; choose replace or strict")
    return errors


def _plain(ids: Ids) -> Iterable[int]:
    """Python numbers, also out of a tensor."""
    return ids.tolist() if isinstance(ids, Tensor) else ids
