"""A second device for a machine without a GPU, on which each model is run as on the CPU: `python second_device.py`.

Its tensors hold a CPU's numbers and say that they lie on "other". As on a GPU they do not mix with those on the CPU,
and the CPU waits for the device where it asks for a number, or for how many there are, or copies either way. torch lets
a process have a backend of its own (once and for all: so this is a process of its own).
"""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from txlib.attention import (
    BigBirdConfig,
    BlockSparseConfig,
    DenseConfig,
    FlashConfig,
    GatedLinearConfig,
    LinearConfig,
    LinformerConfig,
    MemoryCompressedConfig,
    NystromConfig,
    PerformerConfig,
    block_local,
    causal,
    dilated,
    global_tokens,
    prefix_lm,
    random_blocks,
    sliding_window,
    sparse_fixed,
    strided,
    strided_keys,
)
from txlib.attention.mechanism import MechanismConfig
from txlib.generation import GenerationConfig, generate
from txlib.layers import BlockConfig, LongformerConfig
from txlib.models import (
    GPT,
    BertForMaskedLM,
    ByteNet,
    ByteNetConfig,
    ConvNet,
    ConvNetConfig,
    ConvSeq2Seq,
    ConvSeq2SeqConfig,
    DeepSets,
    DeepSetsConfig,
    Encoder,
    EncoderConfig,
    GPTConfig,
    MusicConfig,
    MusicTransformer,
    SetTransformer,
    SetTransformerConfig,
    Transformer,
    TransformerConfig,
    UniversalGPT,
    UniversalGPTConfig,
    ViTConfig,
    ViTForImageClassification,
)
from txlib.recipes.language import window_loss
from txlib.training import optimizers, training_step


class Backend(_DummyBackendModule):
    """What torch asks of a backend."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend("other", backend_module=Backend())
torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor(…, device=…)` is made here, and moved in the open
torch.__future__.set_overwrite_module_params_on_conversion(True)

CPU, OTHER = torch.device("cpu"), torch.device("other", 0)
ATEN = torch.ops.aten
MOVES = {ATEN._to_copy.default, ATEN.copy_.default}
ASKS = {  # what the CPU needs to have back before it can go on
    *(ATEN._local_scalar_dense.default, ATEN.equal.default, ATEN.nonzero.default, ATEN.masked_select.default),
    *(ATEN._unique2.default, ATEN.unique_consecutive.default, ATEN.bincount.default, ATEN.repeat_interleave.Tensor),
}
INDEXED = {ATEN.index.Tensor, ATEN.index_put.default, ATEN.index_put_.default, ATEN._unsafe_index.Tensor}
waits: set[str] = set()  # the lines of txlib that did


class There(Tensor):
    """A tensor on the other device."""

    @staticmethod
    def __new__(cls, held: Tensor) -> "There":
        place = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        return Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=OTHER, **place)

    def __init__(self, held: Tensor):
        self.held = held

    def tolist(self) -> Any:
        note_wait()
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        return compute(operator, args, kwargs or {})


class Second(TorchDispatchMode):
    """Inside, there is the other device."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return compute(operator, args, kwargs or {})


def compute(operator: Any, args: tuple, kwargs: dict) -> Any:
    """What an operator gives, where it has to lie."""
    given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    there = [each for each in given if isinstance(each, There)]
    here = [each for each in given if not isinstance(each, There)]
    target = kwargs.get("device")
    result_there = bool(there) if target is None else target.type == "other"
    if operator is ATEN.copy_.default:
        result_there = isinstance(args[0], There)
    if there and here and operator not in MOVES | INDEXED and any(each.dim() for each in here):
        shapes = ", ".join(str(tuple(each.shape)) for each in here if each.dim())
        raise RuntimeError(f"{operator} of tensors on the other device was given {shapes} on the CPU")
    asks = there and operator in ASKS
    moved = operator in MOVES and bool(there) != result_there or operator is ATEN.copy_.default and there and here
    counted = there and operator in INDEXED and any(each is not None and each.dtype == torch.bool for each in args[1])
    if asks or moved or counted or (there and here and operator in INDEXED):
        note_wait()
    if target is not None and target.type == "other":
        kwargs = kwargs | {"device": CPU}
    args_here, kwargs_here = tree_map_only(There, lambda each: each.held, (args, kwargs))
    out = operator(*args_here, **kwargs_here)
    if not result_there:
        return args[0] if operator is ATEN.copy_.default else out
    out = tree_map_only(Tensor, There, out)
    return return_and_correct_aliasing(operator, args, kwargs, out) if there else out


def note_wait() -> None:
    """Remember the innermost line of txlib, if one is at work."""
    for frame in reversed(traceback.extract_stack()):
        if "/txlib/" in frame.filename.replace("/tests/txlib/", "/tests/"):
            waits.add(f"{Path(frame.filename).stem}: {frame.line}")
            return


# What is run ----------------------------------------------------------------------------------------------------------

BLOCK = BlockConfig.of_sizes(16, 4, 20, kv_heads=2, position="rotary")
PLAIN = BLOCK.replace(kv_heads=None, position="learned")
VOCABULARY, LENGTH = 30, 80  # more than a block of queries
MECHANISMS: dict[str, MechanismConfig] = {
    "bigbird": BigBirdConfig(block=4, random=1),
    "linformer": LinformerConfig(keys=8),
    "compressed": MemoryCompressedConfig(),
    "nystrom": NystromConfig(),
    **{each.name: each for each in (DenseConfig(), BlockSparseConfig(), FlashConfig(triton=False))},
    **{each.name: each for each in (LinearConfig(), PerformerConfig(), GatedLinearConfig())},
}
MASKS = {
    "window": sliding_window(3),
    "dilated": dilated(2, 2),
    "global": sliding_window(3) | global_tokens([0, 70]),
    "strided": strided(4),
    "fixed": sparse_fixed(4, 1),
    "local": block_local(8),
    "prefix": prefix_lm(5),
    "random": block_local(8) | random_blocks(8, 1),
    "every": strided_keys(3) & causal(),
}
Case = tuple[Callable[[], nn.Module], dict[str, Tensor]]


def cases() -> dict[str, Case]:
    """A model and what it is called with, by name."""
    ids = torch.randint(3, VOCABULARY, (2, LENGTH))
    real = torch.ones_like(ids)
    real[1, 70:] = 0
    text = {"input_ids": ids, "attention_mask": real}
    learned = text | {"labels": ids}
    pair = learned | {"decoder_input_ids": ids}
    picture, labels = torch.randn(2, 1, 12, 12), torch.tensor([0, 1])
    marked = torch.zeros_like(ids)
    marked[:, 0] = 1

    def gpt(block: BlockConfig) -> Callable[[], nn.Module]:
        return lambda: GPT(GPTConfig(VOCABULARY, block, layers=2, max_length=96))

    def encoder(block: BlockConfig) -> Callable[[], nn.Module]:
        return lambda: Encoder(EncoderConfig(VOCABULARY, block, layers=2, max_length=96))

    found: dict[str, Case] = {}
    for position in ("sinusoidal", "learned", "rotary", "rotary_half", "shaw", "skewed", "alibi", "t5"):
        found[f"gpt {position}"] = gpt(BLOCK.replace(position=position)), learned
    for name in ("dense", "block_sparse", "flash", "linear", "performer", "gated-linear", "compressed"):
        found[f"gpt {name}"] = gpt(PLAIN.replace(mechanism=MECHANISMS[name])), learned
    for name, mechanism in MECHANISMS.items():
        found[f"encoder {name}"] = encoder(PLAIN.replace(mechanism=mechanism)), text
    for name, mask in MASKS.items():
        found[f"dense {name}"] = encoder(PLAIN.replace(mask=mask)), text
        found[f"blocks {name}"] = encoder(PLAIN.replace(mask=mask, mechanism=BlockSparseConfig(16))), text
    wide = PLAIN.replace(mask=sliding_window(4), mixer=LongformerConfig(), mechanism=BlockSparseConfig(16))
    found["longformer"] = encoder(wide), text | {"global_attention_mask": marked}
    found["experts"] = gpt(BLOCK.replace(experts=4)), learned
    sequences: dict[str, Any] = {
        "transformer": lambda: Transformer(TransformerConfig(VOCABULARY, PLAIN, 2, 2, max_length=96)),
        "convolutional": lambda: ConvSeq2Seq(ConvSeq2SeqConfig(VOCABULARY, 8, 6, 2, 2, max_length=96)),
        "bytenet": lambda: ByteNet(ByteNetConfig(VOCABULARY, 8, 1, 1, dilations=(1, 2))),
    }
    found |= {name: (make, pair) for name, make in sequences.items()}
    found["bert"] = lambda: BertForMaskedLM(EncoderConfig(VOCABULARY, PLAIN, 2, max_length=96)), learned
    found["universal"] = lambda: UniversalGPT(UniversalGPTConfig(VOCABULARY, PLAIN, steps=3, max_length=96)), learned
    skewed = PLAIN.replace(position="skewed")
    found["music"] = lambda: MusicTransformer(MusicConfig(VOCABULARY, skewed, layers=2, max_length=96)), learned
    seen = {"pixel_values": picture, "labels": labels}
    found["vit"] = lambda: ViTForImageClassification(ViTConfig(12, 4, PLAIN, layers=2, channels=1), labels=2), seen
    found["convnet"] = lambda: ConvNet(ConvNetConfig(channels=1, widths=(8, 16), blocks=(1, 1))), seen
    bag = {"inputs": torch.randn(2, 7, 3), "attention_mask": real[:, 64:71]}
    found["set transformer"] = lambda: SetTransformer(SetTransformerConfig(3, 5, d_model=8, heads=2, points=3)), bag
    found["deep sets"] = lambda: DeepSets(DeepSetsConfig(3, 5, d_model=8)), bag
    return found


def results(model: nn.Module, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The output, and the gradient of each parameter."""
    out = model(**given)
    loss = out.loss if getattr(out, "loss", None) is not None else out[0].square().mean()
    loss.backward()
    return {"output": out[0].detach()} | {name: each.grad for name, each in model.named_parameters()}


def check(make: Callable[[], nn.Module], given: dict[str, Tensor]) -> None:
    """The same numbers here and there."""
    torch.manual_seed(1)
    model = make().train()
    torch.manual_seed(2)
    expected = results(model, given)
    model.zero_grad()
    with Second():
        model = model.to(OTHER)
        given = {name: each.to(OTHER) for name, each in given.items()}
        torch.manual_seed(2)
        waits.clear()
        found = results(model, given)
    for name, each in expected.items():
        if each is None:
            continue
        other = found[name]
        assert isinstance(other, There), f"{name} lies on the {other.device}"
        torch.testing.assert_close(
            other.held, each, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def check_step() -> None:
    """A step of training asks for nothing; a text is written, too."""
    ids = torch.randint(3, VOCABULARY, (2, 20))
    model = GPT(GPTConfig(VOCABULARY, BLOCK, layers=2, max_length=96))
    with Second():
        model = model.to(OTHER)
        optimizer = optimizers(model, lr=1e-3, muon_lr=1e-2)
        windows = ids.to(OTHER)
        waits.clear()
        for _ in range(2):
            training_step(model, [windows, windows], window_loss, optimizer, clip=1.0)
        assert not waits, f"a step waits: {waits}"
        for config in (None, GenerationConfig(do_sample=True, temperature=0.8, top_k=5, top_p=0.9)):
            assert len(generate(model.eval(), windows[:, :5], config=config, max_new_tokens=4)) == 2


def main() -> None:
    """Print the cases that fail, and those that wait, and where."""
    torch.manual_seed(0)
    failed = False
    for name, case in [*cases().items(), ("step", None)]:
        try:
            check(*case) if case else check_step()
        except Exception as error:
            lines = [f"{each.filename}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__)]
            inside = next((line for line in reversed(lines) if "/txlib/" in line), lines[-1])
            print(f"{name}: {type(error).__name__} in {inside}: {error}"[:1000])
            failed = True
            continue
        print(f"{name}: {' | '.join(sorted(waits)) or 'waits for nothing'}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
