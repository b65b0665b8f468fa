"""The language-model recipe: plays in, a model that writes on, and its loss on plays that it has not seen.

The models are small Llamas (Touvron et al. 2023, §2.2: RMSNorm, SwiGLU, rotary positions, no biases), so that what is
saved is a folder as `transformers` writes it: `txlib generate` needs to know nothing about this recipe, and
`transformers` reads it, too. Squared ReLUs with normalised queries and keys, which that format cannot say, came to the
same 1.58 nats a character of tiny Shakespeare with the preset `small` in about equal CPU time.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from txlib.data import shakespeare
from txlib.generation import Sampling, Writer
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig
from txlib.models.pretrained import save_pretrained
from txlib.text import BytePairEncoder
from txlib.training.loop import TrainConfig, train
from txlib.training.losses import linear_cross_entropy
from txlib.training.runs import TOKENIZER, MadeWhenAsked, Run, choose, plan_memory

TOKENS = ("characters", "bpe")


@dataclass(frozen=True)
class Preset:
    """A model's shape and how to train it.

    Args:
        block, layers: the model.
        context: tokens that it sees at a time, in training and later.
        vocab_size: with byte-pair encoding; characters are 256.
        batch: windows of `context` tokens in a batch.
        training: rates, warm-up, averaging.
        minutes: length of a run when the caller does not say; about right for the hardware that the preset is for.
    """

    block: BlockConfig
    layers: int
    context: int
    vocab_size: int
    batch: int
    training: TrainConfig
    minutes: float


def _llama(d_model: int, heads: int, d_ff: int, dropout: float = 0.0) -> BlockConfig:
    return BlockConfig(
        d_model=d_model,
        heads=heads,
        d_ff=d_ff,
        norm="rms",
        activation="swiglu",
        bias=False,
        dropout=dropout,
        position="rotary_half",
        zero_output=True,
    )


_MUON = TrainConfig(lr=4e-3, muon_lr=0.02, warmup=40, checkpoint_every=200, validate_every=500)

PRESETS: dict[str, Preset] = {
    "small": Preset(_llama(128, 4, 328), 4, 64, 1_024, 32, _MUON, minutes=2.3),
    "medium": Preset(_llama(256, 4, 688, 0.1), 6, 256, 2_048, 16, replace(_MUON, lr=3e-3), minutes=30.0),
    "large": Preset(_llama(384, 6, 1024, 0.2), 6, 256, 4_096, 64, replace(_MUON, lr=3e-3, warmup=100), minutes=3.0),
}
"""`small` (0.80 million parameters) is for minutes on one core, `medium` for half an hour of a laptop, `large` for a
GPU. `small` and `large` have the sizes of nanoGPT's two settings for characters, so that losses can be compared."""


def make_encoder(tokens: str, text: str, vocab_size: int) -> BytePairEncoder:
    """The tokenizer: "bpe" learns `vocab_size` tokens from the text, "characters" are bytes, without merges.

    A byte is a character in English, and further characters have two to four: none is ever unknown.

    Raises:
        ValueError: for other tokens.
    """
    if tokens not in TOKENS:
        raise ValueError(f"tokens={tokens!r} is unknown; choose {' or '.join(TOKENS)}")
    if tokens == "bpe":
        return BytePairEncoder.train([text], vocab_size)
    return BytePairEncoder({bytes([byte]): byte for byte in range(256)}, [])


def make_model(preset: Preset, vocab_size: int, *, seed: int = 0) -> GPT:
    """An untrained model of the preset's shape."""
    torch.manual_seed(seed)
    return GPT(GPTConfig(vocab_size, preset.block, layers=preset.layers, max_length=preset.context))


def window_batches(
    ids: Int[Tensor, "length"], context: int, batch: int, *, seed: int = 0
) -> Callable[[int], Sequence[Tensor]]:
    """The batches that `train` wants: (batch, context + 1) tokens, of which all but the last are read, all but the
    first predicted.

    In each epoch the text is cut anew, from another first token on, into windows that overlap by the one token; they
    come in another order. What does not fill a window or a batch is left out until the next epoch.

    Raises:
        ValueError: when the text is too short for one window.
    """
    if len(ids) < 2 * context:
        raise ValueError(f"the text has {len(ids)} tokens, too few for windows of {context}; give at least twice that")

    def batches(epoch: int) -> Sequence[Tensor]:
        chance = random.Random(f"{seed} {epoch}")
        first = chance.randrange(context)
        starts = list(range(first, len(ids) - context, context))
        chance.shuffle(starts)
        size = min(batch, len(starts))
        groups = torch.tensor(starts[: len(starts) // size * size]).view(-1, size)  # (batches, batch)
        return MadeWhenAsked(groups, lambda group: ids[group[:, None] + torch.arange(context + 1)])

    return batches


def window_loss(model: GPT, windows: Int[Tensor, "batch length"]) -> tuple[Float[Tensor, ""], int]:
    """The loss that `train` wants: summed over all predicted tokens, and their number."""
    hidden, labels = model.decode(windows[:, :-1]), windows[:, 1:]
    return linear_cross_entropy(hidden, model.output_weight, labels, 0.0), labels.numel()


@torch.no_grad()
def validation_loss(model: GPT, ids: Int[Tensor, "length"], context: int, *, batch: int = 64) -> float:
    """Mean cross-entropy of a token, in nats, over all windows of a text.

    The rule: the text is cut, from its first token on, into windows of `context` tokens, one behind the other; the last
    may be shorter. At each place of a window the model predicts the next token of the text from those of this window
    up to there. So each token but the text's first is predicted exactly once, from 1 to `context` tokens before it.

    Raises:
        ValueError: when there is nothing to predict.
    """
    if len(ids) < 2:
        raise ValueError(f"a text of {len(ids)} tokens has nothing to predict; give at least 2")
    device = next(model.parameters()).device
    whole = (len(ids) - 1) // context
    windows = ids[: whole * context + 1].unfold(0, context + 1, context) if whole else ids.new_empty(0, 2)
    total = 0.0
    for part in [*windows.split(batch), ids[None, whole * context :]]:
        part = part.to(device)  # (batch, context + 1)
        if part.numel() and part.shape[1] > 1:
            logits = model(part[:, :-1]).logits.float()  # (batch, context, vocab)
            total += float(F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum"))
    return total / (len(ids) - 1)


def bits_per_byte(loss: float, ids: Sequence[int], encoder: BytePairEncoder) -> float:
    """Nats a token as bits for each byte of the text, which tokenizers of any kind can be compared by.

    In plain English a byte is a character.
    """
    predicted = ids[1:]
    return loss * len(predicted) / math.log(2) / len(encoder.decode_bytes(predicted))


def train_language(
    source: str = "shakespeare",
    *,
    tokens: str = "characters",
    preset: str = "small",
    minutes: float | None = None,
    steps: int | None = None,
    device: torch.device | str = "cpu",
    out: Path | str = "runs/shakespeare",
    resume: bool = False,
    seed: int = 0,
    quiet: bool = False,
    folder: Path | str | None = None,
) -> dict[str, Any]:
    """Train a language model, measure it on the validation text, and save both.

    Before anything is written, the memory that the run will take is estimated, and printed unless `quiet`.

    Args:
        source, folder: see `txlib.data.shakespeare`.
        tokens: "characters" or "bpe"; see `make_encoder`.
        minutes, steps: length of the run, one of them; the preset's minutes unless given.
        out: gets `model/`, which `load_pretrained` and `load_tokenizer` read, `metrics.csv`, and what is needed to
            resume.
        resume: go on with the run in `out`, with the settings that it was started with.

    Returns:
        what is also written to `model/result.json`: validation loss, bits a byte, a sample, times, settings.

    Raises:
        ValueError: for unknown names, an `out` that holds another run, or too little memory; nothing is written then.
    """
    if resume:
        run = Run.resume(out)
    else:
        run = Run.new(
            out,
            minutes=minutes,
            steps=steps,
            default=choose(PRESETS, preset).minutes,
            source=source,
            tokens=tokens,
            preset=preset,
            seed=seed,
        )
    settings = run.settings
    chosen = choose(PRESETS, settings["preset"])
    training = replace(chosen.training, seed=settings["seed"])
    texts = shakespeare(settings["source"], folder)
    if resume:
        encoder = BytePairEncoder.load(run.folder / TOKENIZER)
    else:
        encoder = make_encoder(settings["tokens"], texts.train, chosen.vocab_size)
    ids, unseen = (torch.tensor(encoder.encode(text)) for text in (texts.train, texts.validation))
    model = make_model(chosen, len(encoder), seed=settings["seed"])
    batches = window_batches(ids, chosen.context, chosen.batch, seed=settings["seed"])
    plan_memory(model, {"input_ids": batches(0)[0][:, :-1]}, training, device, quiet=quiet)
    if not resume:
        run.start(lambda where: encoder.save(where / TOKENIZER))

    progress = train(
        model.to(device),
        batches,
        window_loss,
        training,
        steps=settings["steps"],
        minutes=settings["minutes"],
        out=run.out,
        resume=run.begun,
        validate=lambda _: validation_loss(model, unseen, chosen.context),
        quiet=quiet,
    )
    loss = progress.validation[-1][1]
    sampling = Sampling(temperature=0.8)
    result = run.result(
        model,
        progress,
        validation_loss=loss,
        bits_per_byte=bits_per_byte(loss, unseen.tolist(), encoder),
        sample="ROMEO:" + Writer(model, encoder).write("ROMEO:", max_new_tokens=300, sampling=sampling, seed=0)[0],
        train_tokens=progress.tokens,
    )

    def save(where: Path) -> None:
        save_pretrained(model, where)
        encoder.save(where / TOKENIZER)

    return run.finish(save, result)
