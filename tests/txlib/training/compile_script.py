"""Compiled blocks beside plain ones: prints differences and numbers of graphs as JSON.

With aot_eager, which traces and rewrites all that inductor would, and needs no C++ compiler.
"""

import json
from dataclasses import replace

import resume_script
import torch
from torch._dynamo.utils import counters

from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig
from txlib.recipes.language import window_loss
from txlib.recipes.translation import translation_loss
from txlib.training import train
from txlib.training.blocks import blocks_of, checkpointed, compiled

BLOCK = BlockConfig.of_sizes(
    16, 2, 32, norm="rms", activation="swiglu", position="rotary_half", dropout=0.2, attention_dropout=0.1
)


def make_gpt(layers=4, **changes):
    torch.manual_seed(1)
    model = GPT(GPTConfig(30, BLOCK.replace(**changes), layers=layers, max_length=32))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.train()


def result(model, loss, batch, bf16=False):
    """Loss and gradients, from the same random numbers."""
    torch.manual_seed(7)
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        total, _ = loss(model, batch)
    total.backward()
    return total, {name: parameter.grad for name, parameter in model.named_parameters()}


def beside_plain(policy):
    """The largest difference of a loss or gradient."""
    model, batch = make_gpt(dropout=0.0, attention_dropout=0.0), torch.randint(30, (3, 17))
    expected, gradients = result(model, window_loss, batch)
    with checkpointed(model, policy), compiled(model):
        loss, others = result(model, window_loss, batch)
    apart = [
        float((others[name] - gradient).abs().max() / gradient.abs().max()) for name, gradient in gradients.items()
    ]
    left = sum(block._compiled_call_impl is not None for block in blocks_of(model))
    return {"difference": max(*apart, abs(float(loss / expected) - 1)), "left": left}


def of_all_lengths():
    model = make_gpt(layers=2)
    with compiled(model):
        for length in (9, 17, 12, 30, 8, 21):
            result(model, window_loss, torch.randint(30, (2, length)))
    return {}


def encoder_and_decoder():
    config = replace(resume_script.CONFIG, compile=True, validate_every=4, checkpoint_every=None)
    model, options = resume_script.make_model(), dict(steps=6, validate=resume_script.validate, quiet=True)
    return {"validations": len(train(model, resume_script.batches, translation_loss, config, **options).validation)}


def counted(work, *arguments):
    torch._dynamo.reset()
    counters.clear()
    found = work(*arguments)
    return {**found, "graphs": counters["stats"]["unique_graphs"], "breaks": sum(counters["graph_break"].values())}


if __name__ == "__main__":
    torch.set_num_threads(1)
    compile_ = torch.compile
    torch.compile = lambda call, mode=None: compile_(call, backend="aot_eager")
    found = {policy: counted(beside_plain, policy) for policy in ("none", "blocks", "matmuls")}
    found |= {"lengths": counted(of_all_lengths), "encoder and decoder": counted(encoder_and_decoder)}
    print(json.dumps(found))
