"""A small run for the tests that kill it: `resume_script.py OUT STEPS [--resume]` ends with its losses as JSON."""

import json
import sys
import time

import torch

from txlib.data import collate
from txlib.layers import BlockConfig
from txlib.models import Transformer, TransformerConfig
from txlib.recipes.translation import translation_loss
from txlib.training import TrainConfig, train


def make_model():
    torch.manual_seed(1)
    block = BlockConfig.of_sizes(d_model=8, heads=2, d_ff=16, dropout=0.2, qk_norm="layer", position="rotary_half")
    return Transformer(TransformerConfig(vocab_size=20, block=block, encoder_layers=1, decoder_layers=1))


def batches(epoch):
    """Seven batches of sentences to be reversed; others in each epoch."""
    chance = torch.Generator().manual_seed(epoch)
    made = []
    for size in range(2, 9):
        sources = [torch.randint(4, 20, (3 + row % 3,), generator=chance).tolist() for row in range(size)]
        made.append(collate([(source, source[::-1]) for source in sources], 1, 2, 0))
    return made


CONFIG = TrainConfig(
    lr=0.01,
    muon_lr=0.02,
    warmup=5,
    average=0.9,
    precision="fp32",
    accumulate=2,
    checkpoint_every=3,
    validate_every=4,
    seed=3,
)


def validate(model):
    torch.rand(1)  # takes from the random numbers that dropout uses
    with torch.no_grad():
        total, count = translation_loss(model, batches(99)[-1])
    return float(total) / int(count)


def slow(*args):
    time.sleep(0.01)  # so that a signal finds the run at work
    return translation_loss(*args)


if __name__ == "__main__":
    torch.set_num_threads(1)
    out, steps, *resume = sys.argv[1:]
    print("starts", flush=True)
    progress = train(
        make_model(),
        batches,
        slow,
        CONFIG,
        steps=int(steps),
        out=out,
        resume=bool(resume),
        validate=validate,
        quiet=True,
    )
    print(json.dumps([progress.losses, progress.validation]))
