"""BERT's recipe: text in; out comes an encoder that fills gaps and tells what follows (Devlin et al. 2019, §3.1).

The text is all the English that comes with the course: verses in two Englishes, plays, reviews. What is saved is a
folder as `transformers` writes it; `txlib finetune bert` builds on it, or on any other BERT.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from txlib.data import batches_by_length, pad, plays, reviews, speeches, verses
from txlib.data.shakespeare import TEST, VALIDATION
from txlib.labels import IGNORED
from txlib.layers import BlockConfig
from txlib.models.bert import BertForPreTraining
from txlib.models.encoder import EncoderConfig
from txlib.models.pretrained import save_pretrained
from txlib.models.sizes import BERT
from txlib.text import BytePairEncoder
from txlib.training.loop import TrainConfig, train
from txlib.training.runs import TOKENIZER, MadeWhenAsked, Run, choose, plan_memory

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MASKED = 0.15  # share of the tokens that are asked for (§3.1, Task #1); of these
REPLACED, RANDOM = 0.8, 0.1  # share that becomes [MASK], and that becomes any token; the rest stays as it is
SHORT, PART = 0.9, 4  # share of the inputs that take at most a quarter of the context (appendix A.2: 90 % of the
# steps): most is learned from near neighbours, and short inputs cost less
SENTENCE = re.compile(r"[^.!?]+[.!?]*")

Document = list[list[int]]  # the tokens of its sentences, in order


@dataclass(frozen=True)
class Preset:
    """An encoder's shape and how to train it.

    Args:
        block, layers: the model.
        context: longest input in tokens.
        vocab_size: of the byte-pair encoding, special tokens included.
        batch_tokens: tokens of a batch.
        training: rates, warm-up, averaging.
        minutes: length of a run when the caller does not say; about right for the hardware that the preset is for.
    """

    block: BlockConfig
    layers: int
    context: int
    vocab_size: int
    batch_tokens: int
    training: TrainConfig
    minutes: float


_SMALL = replace(BERT["base"].block, d_model=128, heads=4, d_ff=512, dropout=0.0, attention_dropout=0.0)
_MUON = TrainConfig(lr=3e-3, muon_lr=0.015, warmup=100, checkpoint_every=200, validate_every=1000)
_PAPER = TrainConfig(lr=1e-4, weight_decay=0.01, warmup=10_000, checkpoint_every=1000, validate_every=5000)

PRESETS: dict[str, Preset] = {
    "tiny": Preset(_SMALL, 4, 256, 4_096, 4_000, _MUON, minutes=45.0),
    "small": Preset(replace(_SMALL, d_model=256, d_ff=1024, dropout=0.1), 4, 256, 4_096, 8_000, _MUON, minutes=240.0),
    "base": Preset(BERT["base"].block, 12, 512, 16_384, 131_072, _PAPER, minutes=720.0),
}
"""`tiny` made the checkpoint that comes with the course, `small` is for a night on a laptop; `base` is the paper's
model and schedule, for a GPU, with a vocabulary that suits the text that comes with the course."""


class Pair(NamedTuple):
    """Two texts; `label` is 0 where the second follows the first, 1 where it is from elsewhere (§3.1, Task #2)."""

    first: list[int]
    second: list[int]
    label: int


class Inputs(dict):
    """A batch: tensors under the names of the model's arguments."""

    def to(self, device: torch.device | str) -> "Inputs":
        """The same batch on another device."""
        return Inputs({name: tensor.to(device, non_blocking=True) for name, tensor in self.items()})


def corpus(part: str, folder: Path | str | None = None) -> dict[str, list[list[str]]]:
    """All English text of the course by source, as documents of sentences, in order.

    Verses in the English of 1611 and of today are one document each, a sentence a verse; a play is one, a sentence a
    speech with its speaker's name; a review is one. What is for testing elsewhere is in neither part.

    Args:
        part: "train" or "validation".
        folder: where else the data lies, with one folder for each source.
    """

    def of(source: str) -> Path | None:
        return None if folder is None else Path(folder) / source

    archaic, modern = zip(*getattr(verses(of("verses")), part), strict=True)
    chosen = (
        text
        for play, text in plays(of("shakespeare")).items()
        if play != TEST and (play == VALIDATION) == (part == "validation")
    )
    texts = [review.text for review in getattr(reviews("stars", of("reviews")), part)]
    return {
        "archaic": [list(archaic)],
        "modern": [list(modern)],
        "plays": [
            [f"{speech.speaker}: {' '.join(speech.text.split())}" for speech in speeches(text)] for text in chosen
        ],
        "reviews": [list(filter(None, map(str.strip, SENTENCE.findall(text)))) for text in texts],
    }


def encode(documents: Mapping[str, list[list[str]]], encoder: BytePairEncoder) -> dict[str, list[Document]]:
    """Token ids of every sentence; documents of a single one are left out, as nothing follows in them.

    Each begins with a space, as within a text, so that its first word is the same token as everywhere else.
    """
    return {
        source: [
            [encoder.encode(" " + sentence, special_tokens=False) for sentence in document]
            for document in of_source
            if len(document) > 1
        ]
        for source, of_source in documents.items()
    }


def make_pairs(documents: Mapping[str, list[Document]], room: int, chance: random.Random) -> list[Pair]:
    """Cut all documents into pairs of texts, half of which get another second text than the one that follows.

    A text is one or more whole sentences, as many as fit into `room` tokens for both. A share of `SHORT` of the pairs
    gets a quarter of that room, the rest any size, so that the model knows inputs of every length. The other second
    text is from a random place of the same source, so that style does not give it away; what it took the place of
    begins the next pair. What is too long is cut off at the end.
    """
    pairs = []
    for of_source in documents.values():
        for document in of_source:
            start = 0
            while start + 1 < len(document):
                size = max(2, room // PART) if chance.random() < SHORT else chance.randint(min(16, room), room)
                end = max(start + 2, fill(document, start, size))
                middle = chance.randint(start + 1, end - 1)
                first, label = join(document[start:middle])[: size - 1], int(chance.random() < 0.5)
                if label:
                    other = chance.choice(of_source)
                    place = chance.randrange(len(other))
                    second, start = join(other[place : fill(other, place, size - len(first))]), middle
                else:
                    second, start = join(document[middle:end]), end
                first = first[: max(size // 2, size - len(second))]
                pairs.append(Pair(first, second[: size - len(first)], label))
    return pairs


def fill(document: Document, start: int, room: int) -> int:
    """Where to stop, so that the sentences from `start` on just fill the room; at least one is taken."""
    end, size = start + 1, len(document[start])
    while end < len(document) and size + len(document[end]) <= room:
        size += len(document[end])
        end += 1
    return end


def join(sentences: Document) -> list[int]:
    return list(chain.from_iterable(sentences))


def mask_tokens(
    input_ids: Int[Tensor, "batch length"], ordinary: int, mask_id: int, generator: torch.Generator
) -> tuple[Int[Tensor, "batch length"], Int[Tensor, "batch length"]]:
    """Hide tokens: the input with gaps, and the labels, which are -100 where nothing is asked for.

    Of the ordinary tokens, those with ids below `ordinary`, each is asked for with probability 0.15. It is replaced by
    [MASK] in 80 % of the cases, by any ordinary token in 10 %, and left as it is in 10 %, so that the model has to know
    each token and not just the gaps (§3.1, Task #1).
    """

    def draw() -> Tensor:
        return torch.rand(input_ids.shape, generator=generator)

    asked = (draw() < MASKED) & (input_ids < ordinary)  # (batch, length)
    labels = input_ids.where(asked, IGNORED)
    fate, other = draw(), torch.randint(ordinary, input_ids.shape, generator=generator)
    hidden = input_ids.masked_fill(asked & (fate < REPLACED), mask_id)
    return other.where(asked & (fate >= REPLACED) & (fate < REPLACED + RANDOM), hidden), labels


def collate(pairs: Sequence[Pair], special: Mapping[str, int]) -> Inputs:
    """[CLS] first [SEP] second [SEP], padded, with `next_sentence_label`."""
    cls, sep, padding = special["[CLS]"], special["[SEP]"], special["[PAD]"]
    input_ids = pad([[cls, *pair.first, sep, *pair.second, sep] for pair in pairs], padding)
    kinds = pad([[0] * (len(pair.first) + 2) + [1] * (len(pair.second) + 1) for pair in pairs], 0)
    return Inputs(
        input_ids=input_ids,
        attention_mask=(input_ids != padding).long(),
        token_type_ids=kinds,
        next_sentence_label=torch.tensor([pair.label for pair in pairs]),
    )


def pair_batches(
    documents: Mapping[str, list[Document]], encoder: BytePairEncoder, context: int, max_tokens: int, *, seed: int = 0
) -> Callable[[int], Sequence[Inputs]]:
    """The batches that `train` wants: in each epoch other pairs with other gaps, those of like length together."""
    special, ordinary = encoder.special_tokens, len(encoder.tokens)

    def batches(epoch: int) -> Sequence[Inputs]:
        pairs = make_pairs(documents, context - 3, random.Random(f"{seed} {epoch}"))
        lengths = [len(pair.first) + len(pair.second) + 3 for pair in pairs]
        groups = batches_by_length(lengths, max_tokens, seed=seed, epoch=epoch)

        def make(group: list[int]) -> Inputs:
            inputs = collate([pairs[index] for index in group], special)
            generator = torch.Generator().manual_seed(random.Random(f"{seed} {epoch} {group[0]}").getrandbits(63))
            gaps, labels = mask_tokens(inputs["input_ids"], ordinary, special["[MASK]"], generator)
            return Inputs(inputs, input_ids=gaps, labels=labels)

        return MadeWhenAsked(groups, make)

    return batches


def guesses(model: BertForPreTraining, batch: Inputs) -> tuple[Float[Tensor, "asked vocab"], Float[Tensor, "batch 2"]]:
    """Logits of the tokens that are asked for, and of what follows; the other tokens' are never computed."""
    out = model.base(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
    asked = out.last_hidden_state[batch["labels"] != IGNORED]  # (asked, d_model)
    return model.predictions(asked, model.base.embedding.weight), model.next_sentence(out.pooler_output)


def pretraining_loss(model: BertForPreTraining, batch: Inputs) -> tuple[Tensor, int]:
    """The loss that `train` wants. For each token asked for it is the paper's: the mean loss of the gaps plus that of
    the next sentences.
    """
    tokens, follows = guesses(model, batch)
    labels = batch["labels"][batch["labels"] != IGNORED]  # (asked,)
    count = max(len(labels), 1)
    of_gaps = F.cross_entropy(tokens.float(), labels, reduction="sum")
    return of_gaps + count * F.cross_entropy(follows.float(), batch["next_sentence_label"]), count


@torch.no_grad()
def measure(model: BertForPreTraining, batches: Sequence[Inputs]) -> dict[str, float]:
    """How well gaps are filled (nats a gap, share of right tokens), and how often what follows is told from what does
    not; beside each share, what always giving the most frequent answer would reach.
    """
    device = next(model.parameters()).device
    loss, right, told = 0.0, 0, 0
    tokens_seen, labels_seen = Counter(), Counter()
    for batch in batches:
        batch = batch.to(device)
        tokens, follows = guesses(model, batch)
        labels = batch["labels"][batch["labels"] != IGNORED]
        loss += float(F.cross_entropy(tokens.float(), labels, reduction="sum"))
        right += int((tokens.argmax(dim=-1) == labels).sum())
        told += int((follows.argmax(dim=-1) == batch["next_sentence_label"]).sum())
        tokens_seen.update(labels.tolist())
        labels_seen.update(batch["next_sentence_label"].tolist())
    gaps, pairs = tokens_seen.total(), labels_seen.total()
    return {
        "gap_loss": loss / gaps,
        "gap_accuracy": right / gaps,
        "gap_baseline": max(tokens_seen.values()) / gaps,
        "next_accuracy": told / pairs,
        "next_baseline": max(labels_seen.values()) / pairs,
    }


def make_model(preset: Preset, encoder: BytePairEncoder, *, seed: int = 0) -> BertForPreTraining:
    """An untrained model of the preset's shape."""
    torch.manual_seed(seed)
    padding = encoder.special_tokens["[PAD]"]
    return BertForPreTraining(
        EncoderConfig(len(encoder), preset.block, layers=preset.layers, max_length=preset.context, pad_id=padding)
    )


def train_bert(
    *,
    preset: str = "small",
    minutes: float | None = None,
    steps: int | None = None,
    device: torch.device | str = "cpu",
    out: Path | str = "runs/bert",
    resume: bool = False,
    seed: int = 0,
    quiet: bool = False,
    folder: Path | str | None = None,
) -> dict[str, Any]:
    """Train a BERT on all the English text of the course, measure it on what it has not seen, and save both.

    Before anything is written, the memory that the run will take is estimated, and printed unless `quiet`.

    Args:
        minutes, steps: length of the run, one of them; the preset's minutes unless given.
        out: gets `model/`, which `load_pretrained` and `load_tokenizer` read, `metrics.csv`, and what is needed to
            resume.
        resume: go on with the run in `out`, with the settings that it was started with.
        folder: see `corpus`.

    Returns:
        what is also written to `model/result.json`: what `measure` gives, times, settings.

    Raises:
        ValueError: for unknown names, an `out` that holds another run, or too little memory; nothing is written then.
    """
    if resume:
        run = Run.resume(out)
    else:
        run = Run.new(
            out, minutes=minutes, steps=steps, default=choose(PRESETS, preset).minutes, preset=preset, seed=seed
        )
    settings = run.settings
    chosen = choose(PRESETS, settings["preset"])
    training = replace(chosen.training, seed=settings["seed"])
    texts = corpus("train", folder)
    if resume:
        encoder = BytePairEncoder.load(run.folder / TOKENIZER)
    else:
        documents = chain.from_iterable(texts.values())
        encoder = BytePairEncoder.train((" ".join(document) for document in documents), chosen.vocab_size, SPECIAL)
    batches, unseen = (
        pair_batches(encode(part, encoder), encoder, chosen.context, chosen.batch_tokens, seed=settings["seed"])
        for part in (texts, corpus("validation", folder))
    )
    model = make_model(chosen, encoder, seed=settings["seed"])
    shape = max(1, chosen.batch_tokens // chosen.context), chosen.context
    plan_memory(model, {"input_ids": torch.zeros(shape, dtype=torch.long)}, training, device, quiet=quiet)
    if not resume:
        run.start(lambda where: encoder.save(where / TOKENIZER))

    held_out = unseen(0)
    progress = train(
        model.to(device),
        batches,
        pretraining_loss,
        training,
        steps=settings["steps"],
        minutes=settings["minutes"],
        out=run.out,
        resume=run.begun,
        validate=lambda _: measure(model, held_out)["gap_loss"],
        quiet=quiet,
    )

    def save(where: Path) -> None:
        save_pretrained(model, where)
        encoder.save(where / TOKENIZER)

    return run.finish(save, run.result(model, progress, **measure(model, held_out), gaps=progress.tokens))
