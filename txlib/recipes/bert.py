"""BERT's recipe: text in; out comes an encoder that fills gaps and tells what follows (Devlin et al. 2019, §3.1).

What is saved is a folder as `transformers` writes it; `txlib finetune bert` builds on it, or on any other BERT.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from txlib.data import BatchDict
from txlib.data.pretraining import SPECIAL, corpus, encode, pair_batches
from txlib.labels import IGNORE_INDEX
from txlib.models.bert import BertForPreTraining
from txlib.models.encoder import EncoderConfig
from txlib.models.sizes import BERT
from txlib.recipes.recipe import Preset, Recipe, Show, option
from txlib.text import BytePairEncoder, Tokenizer
from txlib.training import TrainConfig

_SMALL = BERT["base"].block.replace(d_model=128, heads=4, d_ff=512, dropout=0.0, attention_dropout=0.0)
_MUON = TrainConfig(precision="auto", lr=3e-3, muon_lr=0.015, warmup=100, checkpoint_every=200, validate_every=1000)
_PAPER = TrainConfig(
    precision="auto", lr=1e-4, weight_decay=0.01, warmup=10_000, checkpoint_every=1000, validate_every=5000
)

PRESETS: dict[str, Preset] = {
    "tiny": Preset(
        block=_SMALL, layers=4, vocab_size=4_096, batch_size=4_000, context=256, training=_MUON, minutes=45.0
    ),
    "small": Preset(
        block=_SMALL.replace(d_model=256, d_ff=1024, dropout=0.1),
        layers=4,
        vocab_size=4_096,
        batch_size=8_000,
        context=256,
        training=_MUON,
        minutes=240.0,
    ),
    "base": Preset(
        block=BERT["base"].block, layers=12, vocab_size=16_384, batch_size=131_072, training=_PAPER, minutes=720.0
    ),
}
"""`tiny` made the checkpoint that comes with the course, `small` is for a night on a laptop; `base` is the paper's
model and schedule, for a GPU, with a vocabulary that suits the text that comes with the course."""


class Documents(NamedTuple):
    """By source, lists of sentences: what to train on and what to validate with."""

    train: dict[str, list[list[str]]]
    validation: dict[str, list[list[str]]]


class PreTraining(Recipe[Documents, BertForPreTraining]):
    """Train a BERT on all the English text of the course."""

    command = "train bert"
    presets = PRESETS

    preset: str = option("small", "Size: tiny or small; base (Devlin et al. 2019) for a GPU.")

    @property
    def folder_name(self) -> str:
        return f"bert-{self.preset}"

    def load(self) -> Documents:
        return Documents(corpus("train"), corpus("validation"))

    def make_tokenizer(self, splits: Documents) -> Tokenizer:
        documents = chain.from_iterable(splits.train.values())
        texts = (" ".join(document) for document in documents)
        return Tokenizer.of(BytePairEncoder.train(texts, self.chosen.vocab_size, SPECIAL))

    def make_model(self, splits: Documents, tokenizer: Tokenizer) -> BertForPreTraining:
        preset = self.chosen
        config = EncoderConfig(
            len(tokenizer), preset.block, layers=preset.layers, max_length=preset.context, pad_id=tokenizer.pad_id
        )
        return BertForPreTraining(config)

    def make_batches(
        self, splits: Documents, tokenizer: Tokenizer, part: str = "train"
    ) -> Callable[[int], Sequence[BatchDict]]:
        documents = encode(getattr(splits, part), tokenizer)
        return pair_batches(documents, tokenizer, self.chosen.context, self.chosen.batch_size, seed=self.seed)

    def loss(self, model: BertForPreTraining, batch: BatchDict) -> tuple[Tensor, int]:
        return pretraining_loss(model, batch)

    def measure(
        self, model: BertForPreTraining, splits: Documents, tokenizer: Tokenizer, loss: float, show: Show
    ) -> dict[str, Any]:
        return measure(model, show(self.make_batches(splits, tokenizer, "validation")(0), "measuring"))

    def report(self, result: Mapping[str, Any], out: str) -> str:
        return (
            "A baseline always gives the most frequent answer.\n"
            f"Go on: txlib finetune bert --model {out} --task reviews"
        )


def guesses(
    model: BertForPreTraining, batch: BatchDict
) -> tuple[Float[Tensor, "asked vocab"], Float[Tensor, "batch 2"]]:
    """Logits of the tokens that are asked for, and of what follows; the other tokens' are never computed, which is
    worth it that a GPU is waited for to know how many these are.
    """
    out = model.base(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
    masked = out.last_hidden_state[batch["labels"] != IGNORE_INDEX]  # (masked, d_model)
    return model.predictions(masked, model.base.embedding.weight), model.next_sentence(out.pooler_output)


def pretraining_loss(model: BertForPreTraining, batch: BatchDict) -> tuple[Tensor, int]:
    """The loss that `train` wants. For each token asked for it is the paper's: the mean loss of the gaps plus that of
    the next sentences.
    """
    tokens, follows = guesses(model, batch)
    labels = batch["labels"][batch["labels"] != IGNORE_INDEX]  # (masked,)
    count = max(len(labels), 1)
    of_gaps = F.cross_entropy(tokens.float(), labels, reduction="sum")
    return of_gaps + count * F.cross_entropy(follows.float(), batch["next_sentence_label"]), count


@torch.no_grad()
def measure(model: BertForPreTraining, batches: Iterable[BatchDict]) -> dict[str, float]:
    """How well gaps are filled (nats per gap, share of right tokens), and how often what follows is told from what does
    not; beside each share, what always giving the most frequent answer would reach.
    """
    device = next(model.parameters()).device
    loss, correct, next_correct = 0.0, 0, 0
    tokens_seen: Counter[int] = Counter()
    labels_seen: Counter[int] = Counter()
    for batch in batches:
        batch = batch.to(device)
        tokens, follows = guesses(model, batch)
        labels = batch["labels"][batch["labels"] != IGNORE_INDEX]
        loss += float(F.cross_entropy(tokens.float(), labels, reduction="sum"))
        correct += int((tokens.argmax(dim=-1) == labels).sum())
        next_correct += int((follows.argmax(dim=-1) == batch["next_sentence_label"]).sum())
        tokens_seen.update(labels.tolist())
        labels_seen.update(batch["next_sentence_label"].tolist())
    gaps, pairs = tokens_seen.total(), labels_seen.total()
    return {
        "gap_loss": loss / gaps,
        "gap_accuracy": correct / gaps,
        "gap_baseline": max(tokens_seen.values()) / gaps,
        "next_accuracy": next_correct / pairs,
        "next_baseline": max(labels_seen.values()) / pairs,
    }
