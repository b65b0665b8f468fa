"""What the tour of lesson 00 shows: a translator, a first check, and a loss that is too good to be true."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Bool
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
CONTEXT, BATCH = 64, 8

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
        title="Most English words look at their German counterparts",
        xlabel="German, read",
        ylabel="English, being written",
        bar="weight",
        alt=f"Attention of one head. It looks most: {looks}.",
    )


def show_mask(mask: Bool[Tensor, "query key"], text: str) -> Picture:
    """Draw which words of a text may look at which."""
    words = text.split()
    sees = "; ".join(f"{word}: {row.sum()} of {len(words)}" for word, row in zip(words, mask, strict=True))
    return heatmap(
        mask.float(),
        rows=words,
        columns=words,
        size=0.5,
        numbers=False,
        bar=False,
        title="Dark: the row's word may look there",
        xlabel="word looked at",
        ylabel="word that looks",
        alt=f"How many of the {len(words)} words each word may look at, itself included. {sees}.",
    )


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


@dataclass(frozen=True)
class Reader:
    """A small model that was trained to guess the next character of Shakespeare's plays."""

    model: nn.Module
    alphabet: str
    mask: Mask
    losses: list[float]  # of each step, in nats
    writing_loss: float  # on an unseen play, in nats, when nothing stands after the character that it must guess

    @property
    def training_loss(self) -> float:
        """The mean of the last 20 steps."""
        return sum(self.losses[-20:]) / 20

    @torch.no_grad()
    def write(self, start: str, length: int = 80) -> str:
        """Continue a text, one character after the other, each drawn from the model's probabilities."""
        torch.manual_seed(0)
        ids = [self.alphabet.index(character) for character in start]
        for _ in range(length):
            probabilities = self.model(torch.tensor([ids[-CONTEXT:]]), self.mask)[0, -1].softmax(dim=-1)
            ids.append(int(torch.multinomial(probabilities, 1)))
        return "".join(self.alphabet[index] for index in ids)


def train_reader(ahead: int, steps: int = 200) -> Reader:
    """Train a model of two blocks on Shakespeare's plays.

    Args:
        ahead: how many characters to the right each character may look at; 0 is right.
    """
    mask = Mask(lambda query, key: key <= query + ahead)
    texts = shakespeare()
    alphabet = "".join(sorted(set(texts.train)))
    number = {character: index for index, character in enumerate(alphabet)}
    train, unseen = (
        torch.tensor([number.get(character, 0) for character in text]) for text in (texts.train, texts.validation)
    )
    torch.manual_seed(0)
    model = _Model(len(alphabet))
    optimizer, losses = optimizers(model, lr=4e-3, muon_lr=0.02), []
    for step in progress(range(1, steps + 1), f"may look {ahead} ahead"):
        starts = torch.randint(len(train) - CONTEXT, (BATCH,))
        window = train[starts[:, None] + torch.arange(CONTEXT + 1)]  # (batch, length + 1)
        logits = model(window[:, :-1], mask)  # (batch, length, vocab)
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        optimizer.set_factor(warmup_linear(step, steps, warmup=20))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    window = unseen[: 1_000 * 50].view(1_000, 50)[:, :21]  # beginnings of 20 characters, and the next one
    with torch.no_grad():
        last = model.eval()(window[:, :-1], mask)[:, -1]  # (beginning, vocab)
    return Reader(model, alphabet, mask, losses, F.cross_entropy(last, window[:, -1]).item())
