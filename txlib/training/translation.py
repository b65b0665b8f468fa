"""The translation recipe: sentence pairs in, a translator and its BLEU out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from txlib.data import Batch, batches_by_length, collate, translation
from txlib.generation import beam_search
from txlib.layers import BlockConfig
from txlib.models import Transformer, TransformerConfig
from txlib.models.sizes import VASWANI
from txlib.text.vocabulary import Vocabulary
from txlib.training.checkpoints import (
    CheckpointError,
    load_weights,
    read_json,
    read_tensors,
    whole_folder,
    write_json,
    write_tensors,
)
from txlib.training.loop import TrainConfig, train
from txlib.training.losses import linear_cross_entropy
from txlib.training.runs import MadeWhenAsked, Run, choose
from txlib.training.schedules import noam
from txlib.training.state import Progress

Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Preset:
    """A model's shape and how to train it.

    Args:
        block, layers: the model; the same number of blocks in encoder and decoder.
        vocab_size: of the joint vocabulary.
        batch_tokens: tokens of a batch, source and target together, padding included.
        training: rates, warm-up, averaging.
        minutes: length of a run when the caller does not say; about right for the hardware that the preset is for.
        smoothing: of the labels.
    """

    block: BlockConfig
    layers: int
    vocab_size: int
    batch_tokens: int
    training: TrainConfig
    minutes: float
    smoothing: float = 0.1


_FAST = BlockConfig(
    d_model=256, heads=4, d_ff=1024, bias=False, dropout=0.15, qk_norm=True, position="rotary_half", zero_output=True
)
_MUON = TrainConfig(lr=3e-3, muon_lr=0.02, warmup=40, average=0.98, checkpoint_every=50)
_NOAM = TrainConfig(schedule="inverse_sqrt", warmup=4000, clip=None, average=0.999, checkpoint_every=2000)

PRESETS: dict[str, Preset] = {
    "tiny": Preset(replace(_FAST, d_model=192, d_ff=768, dropout=0.1), 2, 4_000, 1_600, _MUON, minutes=10.0),
    "small": Preset(_FAST, 3, 8_000, 6_000, _MUON, minutes=20.0),
    "base": Preset(VASWANI["base"].block, 6, 37_000, 50_000, replace(_NOAM, lr=noam(4000, 512)), minutes=720.0),
    "big": Preset(VASWANI["big"].block, 6, 37_000, 50_000, replace(_NOAM, lr=noam(4000, 1024)), minutes=5040.0),
}
"""`tiny` is for a lesson, `small` for a laptop; `base` and `big` are the paper's models and schedule, for a GPU."""


class Translator:
    """A trained model with its vocabulary.

    Args:
        model: a `Transformer` whose ids are the vocabulary's.
    """

    def __init__(self, model: Transformer, vocabulary: Vocabulary):
        self.model, self.vocabulary = model.eval(), vocabulary

    def translate(
        self, sentences: Sequence[str], *, beams: int = 4, length_penalty: float = 1.0, batch_tokens: int = 4_000
    ) -> list[str]:
        """Translate sentences, several at a time.

        Args:
            beams, length_penalty: see `beam_search`; 1 beam is greedy.
            batch_tokens: source tokens translated together.
        """
        if not sentences:
            return []
        device = next(self.model.parameters()).device
        encoded = [(ids, ()) for ids in self.vocabulary.encode_batch(sentences)]
        lengths = [len(ids) + 1 for ids, _ in encoded]
        results = [""] * len(encoded)
        for batch in batches_by_length(lengths, max(batch_tokens, *lengths, 0)):
            ids = collate([encoded[index] for index in batch], *special_ids(self.vocabulary)).to(device)
            found = beam_search(
                self.model,
                ids.input_ids,
                ids.attention_mask,
                max_length=int(1.5 * ids.input_ids.shape[1]) + 10,
                beams=beams,
                length_penalty=length_penalty,
            )
            for index, tokens in zip(batch, found, strict=True):
                results[index] = self.vocabulary.decode(tokens)
        return results

    def save(self, folder: Path | str, **files: dict) -> None:
        """Write config.json, model.safetensors, vocabulary.json, and further JSON files by name."""
        with whole_folder(Path(folder)) as where:
            write_tensors(where / "model.safetensors", self.model.state_dict())
            content = {"config": self.model.config.to_dict(), "vocabulary": self.vocabulary.to_dict(), **files}
            for name, values in content.items():
                write_json(where / f"{name}.json", values)

    @classmethod
    def load(cls, folder: Path | str, *, device: torch.device | str = "cpu") -> "Translator":
        """Read what `save` wrote.

        Raises:
            CheckpointError: when something is missing, broken, or does not fit together.
        """
        folder = Path(folder)
        values, vocabulary = read_json(folder / "config.json"), _read_vocabulary(folder / "vocabulary.json")
        try:
            model = Transformer(TransformerConfig.from_dict(values))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{folder / 'config.json'} describes no Transformer ({error}); copy it again or train again"
            ) from None
        if len(vocabulary) != model.config.vocab_size:
            raise CheckpointError(
                f"{folder / 'vocabulary.json'} has {len(vocabulary)} tokens, the model {model.config.vocab_size}; "
                "copy all files of one run"
            )
        load_weights(model, read_tensors(folder / "model.safetensors"), folder / "model.safetensors")
        return cls(model.to(device), vocabulary)


def _read_vocabulary(path: Path) -> Vocabulary:
    content = read_json(path)
    try:
        return Vocabulary.from_dict(content)
    except Exception as error:  # tokenizers raises plain Exception
        raise CheckpointError(f"{path} is not a vocabulary ({error}); copy it again or train again") from None


def special_ids(vocabulary: Vocabulary) -> tuple[int, int, int]:
    """What `collate` wants: start, end, padding."""
    return vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU of plain text, cased, by sacrebleu with its 13a tokenizer (Post 2018), from 0 to 100."""
    from sacrebleu.metrics import BLEU

    return BLEU().corpus_score(list(hypotheses), [list(references)]).score


def translation_loss(smoothing: float) -> Callable[[Transformer, Any], tuple[torch.Tensor, int]]:
    """The loss that `train` wants, for an encoder–decoder: summed over the target's tokens, and their number."""

    def loss(model: Transformer, batch: Any) -> tuple[torch.Tensor, int]:
        memory = model.encode(batch.input_ids, batch.attention_mask)
        hidden = model.decode(batch.decoder_input_ids, memory, batch.attention_mask)
        total = linear_cross_entropy(hidden, model.output_weight, batch.labels, smoothing)
        return total, int((batch.labels >= 0).sum())

    return loss


def pair_batches(
    pairs: Pairs, vocabulary: Vocabulary, max_tokens: int, *, seed: int = 0
) -> Callable[[int], Sequence[Batch]]:
    """The batches that `train` wants: for each epoch the same sentences, dealt anew."""
    encoded = encode_pairs(pairs, vocabulary)
    encoded = [pair for pair in encoded if len(pair[0]) + len(pair[1]) + 2 <= max_tokens]

    def batches(epoch: int) -> Sequence[Batch]:
        lengths = [(len(source) + 1, len(target) + 1) for source, target in encoded]
        groups = batches_by_length(lengths, max_tokens, seed=seed, epoch=epoch)
        special = special_ids(vocabulary)
        return MadeWhenAsked(groups, lambda group: collate([encoded[index] for index in group], *special))

    return batches


def encode_pairs(pairs: Pairs, vocabulary: Vocabulary) -> list[tuple[list[int], list[int]]]:
    """Token ids of both sides."""
    source, target = zip(*pairs, strict=True)
    return list(zip(vocabulary.encode_batch(source), vocabulary.encode_batch(target), strict=True))


def make_translator(preset: Preset, vocabulary: Vocabulary, *, seed: int = 0) -> Translator:
    """An untrained model of the preset's shape for this vocabulary."""
    torch.manual_seed(seed)
    bos, eos, pad = special_ids(vocabulary)
    config = TransformerConfig(
        vocab_size=len(vocabulary),
        block=preset.block,
        encoder_layers=preset.layers,
        decoder_layers=preset.layers,
        bos_id=bos,
        eos_id=eos,
        pad_id=pad,
    )
    return Translator(Transformer(config), vocabulary)


def fit(
    translator: Translator, pairs: Pairs, preset: Preset, *, device: torch.device | str = "cpu", **options: Any
) -> Progress:
    """Train a translator on pairs; options go to `train`."""
    batches = pair_batches(pairs, translator.vocabulary, preset.batch_tokens, seed=preset.training.seed)
    model = translator.model.to(device)
    return train(model, batches, translation_loss(preset.smoothing), preset.training, **options)


def train_translation(
    source: str = "wesnoth",
    pair: str = "de-en",
    *,
    preset: str = "small",
    minutes: float | None = None,
    steps: int | None = None,
    device: torch.device | str = "cpu",
    out: Path | str = "runs/translation",
    resume: bool = False,
    seed: int = 0,
    quiet: bool = False,
    folder: Path | str | None = None,
) -> dict[str, Any]:
    """Train a translator, measure it on the test sentences, and save both.

    Args:
        source, pair, folder: see `txlib.data.translation`.
        minutes, steps: length of the run, one of them; the preset's minutes unless given.
        out: gets `model/`, which `Translator.load` reads, `metrics.csv`, and what is needed to resume.
        resume: go on with the run in `out`, with the settings that it was started with.

    Returns:
        what is also written to `model/result.json`: BLEU with beam 4 and greedy, losses, times, settings.

    Raises:
        ValueError: for an unknown source or preset, an empty corpus, or an `out` that holds another run; nothing is
            written then.
    """
    if resume:
        run = Run.resume(out)
        vocabulary = _read_vocabulary(run.folder / "vocabulary.json")
    else:
        run = Run.new(
            out,
            minutes=minutes,
            steps=steps,
            default=choose(PRESETS, preset).minutes,
            source=source,
            pair=pair,
            preset=preset,
            seed=seed,
        )
    settings = run.settings
    chosen = choose(PRESETS, settings["preset"])
    chosen = replace(chosen, training=replace(chosen.training, seed=settings["seed"]))
    splits = translation(settings["source"], settings["pair"], folder=folder)
    if not resume:
        vocabulary = Vocabulary.train([side for each in splits.train for side in each], chosen.vocab_size)
        run.start(lambda run_folder: vocabulary.save(run_folder / "vocabulary.json"))

    translator = make_translator(chosen, vocabulary, seed=settings["seed"])
    progress = fit(
        translator,
        splits.train,
        chosen,
        steps=settings["steps"],
        minutes=settings["minutes"],
        device=device,
        out=run.out,
        resume=run.begun,
        validate=lambda _: validation_loss(translator, splits.validation, chosen.batch_tokens),
        quiet=quiet,
    )
    sources, references = zip(*splits.test, strict=True)
    result = run.result(
        translator.model,
        progress,
        bleu=bleu(translator.translate(sources), references),
        bleu_greedy=bleu(translator.translate(sources, beams=1), references),
        validation_loss=progress.validation[-1][1],
        target_tokens=progress.tokens,
    )
    translator.save(run.out / "model", result=result)
    return result


@torch.no_grad()
def validation_loss(translator: Translator, pairs: Pairs, max_tokens: int) -> float:
    """Mean cross-entropy of a target token, in nats, without smoothing."""
    loss, total, tokens = translation_loss(0.0), 0.0, 0
    device = next(translator.model.parameters()).device
    for batch in pair_batches(pairs, translator.vocabulary, max_tokens)(0):
        batch_loss, batch_tokens = loss(translator.model, batch.to(device))
        total, tokens = total + float(batch_loss), tokens + batch_tokens
    return total / tokens
