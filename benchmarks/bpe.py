"""Compare byte-pair encoding with Hugging Face's tokenizers (Rust): training to 4096 tokens, and encoding. One thread.

    python benchmarks/bpe.py [--rounds 3] [--save]

It measures CPU seconds, because wall-clock time on a busy machine says little. The text is the bundled plays of
Shakespeare: 1 MB of them, and 10 MB by repeating them with some words spelled backward. Both encode with the same
merges and a fresh encoder, and must give the same ids.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # before tokenizers is loaded

from compare import Row, in_turns, median, save, table
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from txlib.data import plays
from txlib.text import BytePairEncoder

VOCABULARY = 4096
SIZES = {"1 MB": 1_000_000, "10 MB": 10_000_000}
LIMITS = {"1 MB": 1.2, "10 MB": 1.0}  # times the peer's training time
FASTER = 3  # times the peer's encoding


def cpu_seconds(work: Callable[[], object]) -> float:
    """Process CPU time of one call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def text_of(size: int) -> str:
    """Plays, then the plays again with every seventh word spelled backward, so that new words keep coming."""
    words = "\n".join(plays().values()).split(" ")
    text, step = "", 0
    while len(text) < size:
        text += " ".join(word if (i + step) % 7 or not step else word[::-1] for i, word in enumerate(words)) + "\n"
        step += 1
    return text[:size]


def their_training(text: str) -> Tokenizer:
    """The peer, trained line by line, which is its faster way."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write results/bpe.json")
    arguments = parser.parse_args()
    rows, measured = [], {}
    for name, size in SIZES.items():
        text = text_of(size)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tokenizer.json"
            BytePairEncoder.train([text], VOCABULARY).save(path)
            theirs, lines = Tokenizer.from_file(str(path)), text.splitlines(keepends=True)
            if BytePairEncoder.load(path).encode(text[:200_000]) != theirs.encode(text[:200_000]).ids:
                raise SystemExit("the two give different ids: nothing to compare")

            def ours_anew(path: Path = path, text: str = text) -> float:
                encoder = BytePairEncoder.load(path)  # a new one has no pieces in mind
                return cpu_seconds(lambda: encoder.encode(text))

            def theirs_anew(path: Path = path, lines: list[str] = lines) -> float:
                tokenizer = Tokenizer.from_file(str(path))
                return cpu_seconds(lambda: tokenizer.encode_batch_fast(lines))

            found = in_turns(
                {
                    f"train {name}, peer": lambda text=text: cpu_seconds(lambda: their_training(text)),
                    f"train {name}, ours": lambda text=text: cpu_seconds(
                        lambda: BytePairEncoder.train([text], VOCABULARY)
                    ),
                    f"encode {name}, peer": theirs_anew,
                    f"encode {name}, ours": ours_anew,
                },
                arguments.rounds,
            )
        middle = {way: median(values) for way, values in found.items()}
        for what in ("train", "encode"):
            peer, ours = (middle[f"{what} {name}, {who}"] for who in ("peer", "ours"))
            limit = peer * LIMITS[name] if what == "train" else peer / FASTER
            rows.append(Row(f"{what} {name}", "CPU s", peer, ours, round(limit, 3)))
        measured |= found
    print(table(rows))
    if arguments.save:
        print(save("bpe", rows, measured, ["tokenizers", "regex", "txlib-course"]))


if __name__ == "__main__":
    main()
