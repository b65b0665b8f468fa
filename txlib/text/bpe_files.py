"""The files that hold a byte-pair encoder: GPT-2's two, and Hugging Face's `tokenizer.json`.

Both write a token's bytes as letters, one a byte, so that no token looks empty or breaks a line: `Ġ` is a space.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from txlib.text.merges import GPT2_PATTERN, Pair

Parts = tuple[dict[bytes, int], list[Pair], dict[str, int], str]  # the arguments of BytePairEncoder

PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
LETTERS = {byte: chr(byte) for byte in PRINTABLE} | {byte: chr(256 + i) for i, byte in enumerate(_OTHERS)}
"""The letter that GPT-2 writes for each byte, in the order of GPT-2's ids 0 to 255."""
BYTES = {letter: byte for byte, letter in LETTERS.items()}


def to_letters(token: bytes) -> str:
    """A token as the files write it: b" the" is "Ġthe"."""
    return "".join(map(LETTERS.__getitem__, token))


def to_bytes(letters: str, where: str = "the token") -> bytes:
    """The bytes that letters in a file stand for; ValueError names `where` and the letter that stands for none."""
    try:
        return bytes(map(BYTES.__getitem__, letters))
    except KeyError as error:
        raise ValueError(
            f"{where}: {error.args[0]!r} in {letters!r} stands for no byte; is it a byte-level vocabulary?"
        ) from None


def read_gpt2(encoder_json: str | os.PathLike, vocab_bpe: str | os.PathLike) -> Parts:
    """Read GPT-2's `encoder.json` (token -> id) and `vocab.bpe` (a merge a line).

    A token that is neither one byte nor made by a merge is special: `<|endoftext|>`.
    """
    ids = _read_json(encoder_json)
    lines = _read_text(vocab_bpe).split("\n")
    if lines[0].startswith("#version"):
        lines[0] = ""
    merges = [(f"line {n}", line.split(" ")) for n, line in enumerate(lines, 1) if line]
    special = _not_made(ids, [pair for _, pair in merges])
    return _parts(ids, merges, special, GPT2_PATTERN, str(encoder_json), str(vocab_bpe))


def read_tokenizer_json(path: str | os.PathLike) -> Parts:
    """Read a `tokenizer.json` whose model is byte-level BPE; what would give other ids is refused by name.

    Marks that its post-processor would add around a text are left to the caller.
    """
    content = _read_json(path)
    model = content.get("model") or {}
    if model.get("type") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise ValueError(f"{path}: model type {model.get('type')!r} is not byte-level BPE; read it with `tokenizers`")
    for setting in ("dropout", "byte_fallback", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(setting):
            raise ValueError(f"{path}: {setting}={model[setting]!r} is not supported; read it with `tokenizers`")
    if content.get("normalizer"):
        kind = content["normalizer"].get("type")
        raise ValueError(f"{path}: normalizer {kind!r} changes the text first; read it with `tokenizers`")
    special = {}
    for token in content.get("added_tokens") or []:
        if stripping := [flag for flag in ("lstrip", "rstrip", "single_word") if token.get(flag)]:
            raise ValueError(f"{path}: token {token['content']!r} has {stripping[0]}, which is not supported")
        special[token["content"]] = token["id"]
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges", [])]
    if model.get("ignore_merges") and (missing := set(_not_made(model["vocab"], merges)) - set(special)):
        # Where merges make every token, this setting changes nothing.
        raise ValueError(
            f"{path}: ignore_merges is not supported where a token has no merge, e.g. {min(missing)!r}; "
            "read it with `tokenizers`"
        )
    pattern = _pattern(content.get("pre_tokenizer"), path)
    numbered = [(f"merge {n}", pair) for n, pair in enumerate(merges)]
    return _parts(model["vocab"], numbered, special, pattern, str(path), str(path))


def _pattern(step: dict | None, path: str | os.PathLike) -> str:
    """The pattern of a pre-tokenizer: ByteLevel's own, or a Split in front of it."""
    steps = step["pretokenizers"] if step and step.get("type") == "Sequence" else [step] if step else []
    kinds = [step.get("type") for step in steps]
    if kinds[-1:] == ["ByteLevel"] and steps[-1].get("add_prefix_space"):
        raise ValueError(f"{path}: add_prefix_space is not supported; put the space before the text yourself")
    if kinds == ["ByteLevel"] and steps[0].get("use_regex", True):
        return GPT2_PATTERN
    if kinds == ["Split", "ByteLevel"] and not steps[1].get("use_regex", True):
        pattern = steps[0].get("pattern", {}).get("Regex")
        if pattern and steps[0].get("behavior") == "Isolated" and not steps[0].get("invert"):
            return pattern
    raise ValueError(
        f"{path}: pre-tokenizer {' + '.join(map(str, kinds)) or None} is not supported (ByteLevel is, alone or "
        "behind one Split); read it with `tokenizers`"
    )


def _parts(ids: dict, merges: list, special: dict[str, int], pattern: str, ids_path: str, merges_path: str) -> Parts:
    """Turn letters into bytes, and look at every entry on the way."""
    pairs = []
    for where, pair in merges:
        if len(pair) != 2:
            raise ValueError(f"{merges_path}, {where}: expected two tokens, found {' '.join(map(str, pair))!r}")
        for letters in (*pair, "".join(pair)):
            if letters not in ids:
                raise ValueError(f"{merges_path}, {where}: token {letters!r} has no id in {ids_path}")
        left, right = (to_bytes(letters, f"{merges_path}, {where}") for letters in pair)
        pairs.append((left, right))
    tokens = {}
    for letters, token_id in ids.items():
        if not isinstance(token_id, int) or isinstance(token_id, bool) or token_id < 0:
            raise ValueError(f"{ids_path}: token {letters!r} has the id {token_id!r}; ids are whole numbers from 0")
        if letters not in special:
            tokens[to_bytes(letters, ids_path)] = token_id
        elif special[letters] != token_id:
            raise ValueError(f"{ids_path}: token {letters!r} has two ids, {token_id} and {special[letters]}")
    return tokens, pairs, special, pattern


def _not_made(ids: dict, merges: list[list[str]]) -> dict:
    """The tokens that are neither one byte nor made by a merge, with their ids."""
    made = {*BYTES, *map("".join, merges)}
    return {letters: token_id for letters, token_id in ids.items() if letters not in made}


def tokenizer_json(
    tokens: Mapping[bytes, int], merges: Sequence[Pair], special_tokens: Mapping[str, int], pattern: str
) -> dict[str, Any]:
    """What a `tokenizer.json` says of an encoder with these parts."""
    special = [
        {
            "id": token_id,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for text, token_id in sorted(special_tokens.items(), key=lambda item: item[1])
    ]
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    is_gpt2 = pattern == GPT2_PATTERN
    ids = {to_letters(token): token_id for token, token_id in tokens.items()}
    if clash := ids.keys() & special_tokens.keys():
        raise ValueError(f"the special token {min(clash)!r} reads in the file like another token; rename it to save it")
    ids |= special_tokens
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True}
        if is_gpt2
        else {"type": "Sequence", "pretokenizers": [cut, byte_level]},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": dict(sorted(ids.items(), key=lambda item: item[1])),
            "merges": [f"{to_letters(left)} {to_letters(right)}" for left, right in merges],
        },
    }


def _read_text(path: str | os.PathLike) -> str:
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} does not exist; give the path of a tokenizer's file")
    try:
        return Path(path).read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ValueError(f"{path}: byte {error.start} (0x{byte:02x}) is not UTF-8; download the file again") from None


def _read_json(path: str | os.PathLike) -> dict:
    try:
        content = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error}); download the file again") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a JSON {type(content).__name__}, not an object; is it the right file?")
    return content
