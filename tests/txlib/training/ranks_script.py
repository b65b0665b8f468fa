"""A small run on several processes: `torchrun … ranks_script.py OUT STEPS ENGINE [--resume | --dies]`; the first rank
writes OUT/losses.json and OUT/weights.safetensors. With --dies the last rank is killed in step 5."""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import resume_script
import torch
from safetensors.torch import save_file

from txlib.recipes.translation import translation_loss
from txlib.training import train
from txlib.training.processes import process_group

CONFIG = replace(resume_script.CONFIG, clip=0.5)


def make_model():
    """Without dropout, which is another on each rank."""
    model = resume_script.make_model()
    for module in model.modules():
        for name in {"dropout", "dropout_p"} & vars(module).keys():
            setattr(module, name, 0.0)
        if hasattr(module, "config"):
            block = getattr(module.config, "block", module.config)
            still = block.replace(dropout=0.0)
            module.config = still if block is module.config else replace(module.config, block=still)
    return model


def trained(out, steps, **options):
    """The model, and how its training went."""
    model = make_model()
    names = ("parallel", "muon_lr", "clip", "validate_every")
    settings = {name: options.pop(name) for name in names if name in options}
    config = replace(CONFIG, **settings)
    loss = options.pop("loss", translation_loss)
    with patch("txlib.training.optimizers.dtype_of_iteration", lambda matrix: torch.float32):  # Muon's, else 16 bits
        progress = train(
            model,
            resume_script.batches,
            loss,
            config,
            steps=steps,
            out=out,
            validate=resume_script.validate,
            quiet=True,
            **options,
        )
    return model, progress


def dies_later(model, batch):
    """The loss, until the power is cut in step 5."""
    if model.training and len(CALLS) == 8:
        os.kill(os.getpid(), signal.SIGKILL)
    CALLS.append(1)
    return translation_loss(model, batch)


def write(out, model, progress):
    """What came out."""
    (Path(out) / "losses.json").write_text(json.dumps([progress.losses, progress.validation, progress.tokens]))
    save_file(
        {name: each.contiguous().clone() for name, each in model.named_parameters()}, f"{out}/weights.safetensors"
    )


CALLS = []

if __name__ == "__main__":
    torch.set_num_threads(1)
    out, steps, parallel, *how = sys.argv[1:]
    with process_group() as context:
        loss = dies_later if "--dies" in how and context.rank == context.world_size - 1 else translation_loss
        model, progress = trained(out, int(steps), parallel=parallel, resume="--resume" in how, loss=loss)
    if context.is_main:
        write(out, model, progress)
