"""The translation recipe: sentence pairs in, a translator and its BLEU out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from txlib.data import Batch, LazyDataset, Splits, batches_by_length, collate, translation
from txlib.generation import Translator
from txlib.labels import IGNORE_INDEX
from txlib.layers import BlockConfig
from txlib.models.outputs import auxiliary_loss
from txlib.models.sizes import VASWANI
from txlib.paths import optional_package
from txlib.recipes.leaderboard import COLUMNS, Column, leaderboard
from txlib.recipes.recipe import Preset, Recipe, Show, choose, option
from txlib.recipes.translators import TRANSLATORS, make_translator, vocabulary
from txlib.text import Segmentation, Tokenizer
from txlib.text.segmentation import check_bpe_dropout
from txlib.training import TrainConfig, linear_cross_entropy, linear_divergence, noam
from txlib.training.losses import counted_rows

SMOOTHING = 0.1  # of the labels, while training (Vaswani et al. 2017, §5.4)

_FAST = BlockConfig.of_sizes(
    d_model=256, heads=4, d_ff=1024, bias=False, dropout=0.25, qk_norm="layer", position="rotary_half", zero_output=True
)
_MUON = TrainConfig(precision="auto", lr=3e-3, muon_lr=0.02, warmup=40, average=0.98, checkpoint_every=50)
_NOAM = TrainConfig(
    precision="auto", schedule="inverse_sqrt", warmup=4000, clip=None, average=0.999, checkpoint_every=2000
)
_NOAM_SOON = replace(_NOAM, lr=noam(4000, 192), warmup=400, average=0.98, checkpoint_every=50)
_TINY = _FAST.replace(d_model=192, d_ff=768, dropout=0.1)
_PAPER = VASWANI["base"].block.replace(d_model=192, heads=4, d_ff=768)


def _of_vaswani(size: str, minutes: float) -> Preset:
    block = VASWANI[size].block
    training = replace(_NOAM, lr=noam(4000, block.d_model))
    return Preset(block=block, layers=6, vocab_size=37_000, batch_size=50_000, training=training, minutes=minutes)


PRESETS: dict[str, Preset] = {
    "tiny": Preset(block=_TINY, layers=2, vocab_size=4_000, batch_size=1_600, training=_MUON, minutes=10.0),
    "course": Preset(
        block=_TINY.replace(dropout=0.25), layers=3, vocab_size=4_000, batch_size=2_000, training=_MUON, minutes=60.0
    ),
    "paper": Preset(block=_PAPER, layers=2, vocab_size=4_000, batch_size=1_600, training=_NOAM_SOON, minutes=10.0),
    "small": Preset(block=_FAST, layers=3, vocab_size=8_000, batch_size=6_000, training=_MUON, minutes=20.0),
    "base": _of_vaswani("base", minutes=720.0),
    "big": _of_vaswani("big", minutes=5040.0),
}
"""`tiny` is for a lesson; `paper` has its size and all that Vaswani et al. chose: post-norm, sinusoids, Adam, and their
schedule with its own peak, reached after 400 steps. `course` made the translator that is bundled. `small` is for a
laptop; `base` and `big` are the paper's models and schedule, for a GPU. The tokens of a batch are those of source and
target together."""


class Translation(Recipe[Splits, Any]):
    """Train a translator and measure its BLEU."""

    command = "train translation"
    presets = PRESETS

    data: str = option("wesnoth", "Sentence pairs; `txlib data` lists them.")
    pair: str = option("de-en", "From which language to which: de-en, fr-en, en-de, en-fr.")
    model: str = option("transformer", f"{', '.join(TRANSLATORS)}; all of one size.")
    preset: str = option("small", "tiny, course, paper or small; base or big (Vaswani et al. 2017) for a GPU.")
    bpe_dropout: float = option(0.0, "Share of merges left out, anew in each epoch (BPE-dropout): for larger models.")

    r_drop: float = option(0.0, "Read each batch twice and weigh the difference so (R-Drop): twice the time per step.")

    @property
    def folder_name(self) -> str:
        kind = "" if self.model == "transformer" else f"-{self.model}"
        return f"{self.data}-{self.pair}-{self.preset}{kind}"

    @property
    def training(self) -> TrainConfig:
        return replace(super().training, **choose(TRANSLATORS, self.model, "model").training)

    def check(self) -> None:
        super().check()
        check_bpe_dropout(self.bpe_dropout)
        if self.r_drop < 0:
            raise ValueError(f"r_drop={self.r_drop} must be 0 (without) or more, e.g. 3")

    def load(self) -> Splits:
        return translation(self.data, self.pair)

    def make_tokenizer(self, splits: Splits) -> Tokenizer:
        return Tokenizer.train([side for pair in splits.train for side in pair], self.chosen.vocab_size)

    def make_model(self, splits: Splits, tokenizer: Tokenizer) -> nn.Module:
        return make_translator(choose(TRANSLATORS, self.model, "model"), self.chosen, vocabulary(tokenizer))

    def make_batches(
        self, splits: Splits, tokenizer: Tokenizer, part: str = "train"
    ) -> Callable[[int], Sequence[Batch]]:
        pairs, dropout = getattr(splits, part), self.bpe_dropout if part == "train" else 0.0
        return pair_batches(pairs, tokenizer, self.chosen.batch_size, seed=self.seed, bpe_dropout=dropout)

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        return {"input_ids": batch.input_ids, "decoder_input_ids": batch.decoder_input_ids}

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        return translation_loss(model, batch, r_drop=self.r_drop)

    def measure(self, model: Any, splits: Splits, tokenizer: Tokenizer, loss: float, show: Show) -> dict[str, Any]:
        translator = Translator(model, tokenizer)
        sources, references = zip(*splits.test, strict=True)
        return {
            name: bleu(translator.translate(sources, num_beams=beams, show=show), references)
            for name, beams in (("bleu", 4), ("bleu_greedy", 1))
        }

    def report(self, result: Mapping[str, Any], out: str) -> str:
        example = EXAMPLES[result["pair"][:2]]
        return (
            "BLEU on the test sentences, with beams of 4 and greedy\n"
            f'Try it: txlib translate --model {out} "{example}"\n\n'
            f"All runs next to it on these sentences:\n{comparison(out, result['data'], result['pair'])}"
        )


def comparison(out: Path | str, data: str, pair: str) -> str:
    """Return a table of all finished runs next to `out` on these sentences, the best BLEU first."""
    scores: dict[str, Column] = {"loss": "{validation_loss:.3f}", "BLEU": "{bleu:.1f}", "greedy": "{bleu_greedy:.1f}"}
    return leaderboard(out, "bleu", COLUMNS | scores, data=data, pair=pair)


EXAMPLES = {"de": "Guten Morgen!", "fr": "Bonjour !", "en": "Good morning!"}


def pair_batches(
    pairs: Sequence[tuple[str, str]], tokenizer: Tokenizer, max_tokens: int, *, seed: int = 0, bpe_dropout: float = 0.0
) -> Callable[[int], Sequence[Batch]]:
    """The batches that `train` wants: for each epoch the same sentences, dealt anew; those too long are left out.

    With `bpe_dropout` each epoch also cuts the words anew (Provilkov et al. 2020; see `Segmentation`).
    """
    special = tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id
    sides = [Segmentation(tokenizer, side) for side in zip(*pairs, strict=True)]

    def batches(epoch: int) -> Sequence[Batch]:
        cut = (side.draw(bpe_dropout, f"{seed} {epoch}") for side in sides)
        encoded = [pair for pair in zip(*cut, strict=True) if len(pair[0]) + len(pair[1]) + 2 <= max_tokens]
        lengths = [(len(source) + 1, len(target) + 1) for source, target in encoded]
        groups = batches_by_length(lengths, max_tokens, seed=seed, epoch=epoch)
        return LazyDataset(groups, lambda group: collate([encoded[index] for index in group], *special))

    return batches


def translation_loss(
    model: Any, batch: Batch, smoothing: float = SMOOTHING, r_drop: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The loss that `train` wants, for an encoder–decoder: summed over the target's tokens, and their number.

    Only in training labels are smoothed, `auxiliary_loss` is added, and with `r_drop` each sentence is read twice, with
    another dropout: then the loss is the mean of both, and `r_drop` times half their `linear_divergence` comes on top
    (R-Drop, Liang et al. 2021, equation 4, halved).
    """
    tokens = (batch.labels != IGNORE_INDEX).sum()
    passes = 2 if r_drop and model.training else 1
    source, padding, target = (
        ids.repeat(passes, 1) for ids in (batch.input_ids, batch.attention_mask, batch.decoder_input_ids)
    )
    hidden = model.decode(target, model.encode(source, padding), padding)  # (passes * batch, target, d_model)
    labels = batch.labels.repeat(passes, 1)
    weight = model.output_weight
    total = linear_cross_entropy(hidden, weight, labels, smoothing if model.training else 0.0) / passes
    if passes == 2:
        first, second = (counted_rows(half, batch.labels)[0] for half in hidden.chunk(2))
        total = total + r_drop / 2 * linear_divergence(first, second, weight)
    return (total + tokens * auxiliary_loss(model) if model.training else total), tokens


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU of plain text, cased, by sacrebleu with its 13a tokenizer (Post 2018), from 0 to 100."""
    with optional_package():
        from sacrebleu.metrics import BLEU

    return BLEU().corpus_score(list(hypotheses), [list(references)]).score
