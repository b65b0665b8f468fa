"""What the tour of lesson 00 shows: a translator, a first check, and a loss that is too good to be true."""

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txcourse.lesson import progress
from txgrade.checking.checks import check
from txlib.attention import Mask, recording
from txlib.data import shakespeare, shipped
from txlib.generation import Translator
from txlib.layers import BlockConfig, TransformerBlock
from txlib.models.pretrained import load_pretrained
from txlib.plots import Picture, heatmap
from txlib.text import Tokenizer
from txlib.training import optimizers, warmup_linear

FIRST_CHECK = Path(__file__).with_name("00_causal_mask.py")  # an exercise's source
RECORDINGS = FIRST_CHECK.with_suffix(".txt")
ALIGNING_HEAD = "decoder.layers.2.cross_attention", 1  # of the bundled translator: looks at the word that it translates
CONTEXT, BATCH, STEPS = 64, 8, 200

check.load(RECORDINGS.read_text(encoding="utf-8"))


@cache
def _translator() -> Translator:
    folder = shipped("games-de-en")
    model = load_pretrained(folder, dtype=torch.float32)
    return Translator(model, Tokenizer.load(folder / "tokenizer.json"))


def translate(german: str) -> Picture:
    """Print the bundled translator's English, and return a map of what one of its heads looks at for each word.

    Args:
        german: a sentence; the model was trained on the dialogues of computer games.
    """
    translator = _translator()
    tokenizer, config = translator.tokenizer, translator.model.config
    english = translator.translate([german])[0]
    print(f"{german}\n{english}")
    source, target = (tokenizer.encode(text, special_tokens=False) for text in (german, english))
    with recording(translator.model) as log, torch.no_grad():
        translator.model(
            torch.tensor([[*source, config.eos_id]]), decoder_input_ids=torch.tensor([[config.bos_id, *target]])
        )
    layer, head = ALIGNING_HEAD
    rows, columns = ([tokenizer.decode([token]) for token in tokens] + ["(end)"] for tokens in (target, source))
    weight = log[layer][0][0, head]  # (English, German)
    looks = ", ".join(f"{row} at {columns[index]}" for row, index in zip(rows, weight.argmax(dim=-1), strict=True))
    return heatmap(
        weight,
        rows=rows,
        columns=columns,
        size=0.42,
        title="Each English word looks for its German one",
        xlabel="German, read",
        ylabel="English, being written",
        bar="weight",
        alt=f"Attention of one head. It looks most: {looks}.",
    )


@dataclass(frozen=True)
class Reader:
    """A small model that was trained to guess the next character of Shakespeare's plays, and its loss in nats."""

    training_loss: float  # the mean of the last 20 steps
    writing_loss: float  # on an unseen play, when nothing stands after the place that it must guess
    chance_loss: float  # if all characters were equally likely


class _Model(nn.Module):
    """Two blocks that accept any mask. (txlib's own decoders are always causal.)"""

    def __init__(self, vocab_size: int):
        super().__init__()
        block = BlockConfig.of_sizes(64, 4, 256, norm="rms", bias=False, position="rotary_half")
        self.embedding = nn.Embedding(vocab_size, 64)
        self.blocks = nn.ModuleList(TransformerBlock(block) for _ in range(2))
        self.head = nn.Linear(64, vocab_size)

    def forward(self, ids: Tensor, mask: Mask) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def train_reader(mask: Mask, what: str) -> Reader:
    """Train a model of two blocks for 200 steps, with any mask."""
    alphabet = sorted(set(shakespeare().train))
    number = {character: index for index, character in enumerate(alphabet)}
    train, unseen = (
        torch.tensor([number.get(character, 0) for character in text])
        for text in (shakespeare().train, shakespeare().validation)
    )
    torch.manual_seed(0)
    model = _Model(len(alphabet))
    optimizer, losses = optimizers(model, lr=4e-3, muon_lr=0.02), []
    for step in progress(range(1, STEPS + 1), what):
        starts = torch.randint(len(train) - CONTEXT, (BATCH,))
        window = train[starts[:, None] + torch.arange(CONTEXT + 1)]  # (batch, length + 1)
        logits = model(window[:, :-1], mask)  # (batch, length, vocab)
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        optimizer.set_factor(warmup_linear(step, STEPS, warmup=20))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    window = unseen[: 1_000 * 50].view(1_000, 50)[:, :21]  # beginnings of 20 characters, and the next one
    with torch.no_grad():
        last = model.eval()(window[:, :-1], mask)[:, -1]
    return Reader(sum(losses[-20:]) / 20, F.cross_entropy(last, window[:, -1]).item(), math.log(len(alphabet)))
