"""Memory estimates: against the bytes of real tensors."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.tensor import init_device_mesh

from txlib.attention import BlockSparseConfig, sliding_window
from txlib.models import GPT, Encoder, Transformer
from txlib.models.sizes import BERT, GPT2, LLAMA, MIXTRAL, VASWANI, build
from txlib.recipes.language import window_loss
from txlib.training import memory as MODULE
from txlib.training.distributed import DistributedContext, ParallelLoss
from txlib.training.memory import (
    Memory,
    activation_memory,
    available_memory,
    explain_oom,
    generation_memory,
    parameter_memory,
    training_memory,
)
from txlib.training.optimizers import optimizers
from txlib.training.processes import run_ranks
from txlib.training.tensor_parallel import parallelize

pytestmark = pytest.mark.usefixtures("unchecked")  # checks of annotations take long on fake tensors

SMALL = {"d_model": 64, "heads": 4, "d_ff": 128}


def small(config, **changes):
    """A config of sizes.py, narrow and shallow."""
    layers = "encoder_layers" if hasattr(config, "encoder_layers") else "layers"
    return replace(config, vocab_size=300, block=config.block.replace(**SMALL, **changes), **{layers: 2})


def ids(batch=2, length=24, **names):
    tensor = torch.randint(0, 300, (batch, length))
    return {name: tensor for name in names or ("input_ids", "labels")}


CASES = {
    "gpt2": (GPT, small(GPT2["small"]), ids()),
    "gpt2, long": (GPT, small(GPT2["small"], attention_dropout=0.0), ids(1, 300)),  # torch's fused kernel
    "gpt2, a window": (GPT, small(GPT2["small"], mechanism=BlockSparseConfig(), mask=sliding_window(40)), ids(1, 300)),
    "llama": (GPT, small(LLAMA["7b"], kv_heads=2), ids()),
    "bert": (Encoder, small(BERT["base"]), ids(input_ids=1)),
    "transformer": (Transformer, small(VASWANI["base"]), ids()),
}


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("case", CASES)
def test_activations_are_those_that_autograd_keeps(case, bf16):
    """Counted a second way: every tensor that hangs on the graph of a real forward pass."""
    kind, config, batch = CASES[case]
    model = kind(config)
    seen = {}

    def pack(tensor):
        seen[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers(), *batch.values()]}
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        model(**batch)
    real = sum(tensor.untyped_storage().nbytes() for address, tensor in seen.items() if address not in own)
    assert activation_memory(build(config), batch, bf16=bf16) == real > 10_000
    assert activation_memory(model, batch, bf16=bf16) == real  # a real model is not touched
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_training_against_real_tensors(optimizer):
    _, config, batch = CASES["gpt2"]
    model = GPT(config)
    plan = training_memory(build(config), batch, optimizer=optimizer)
    model(**batch).loss.backward()
    if optimizer == "sgd":
        states = {}
    else:
        real = optimizers(model, lr=1e-3, muon_lr=0.02 if optimizer == "muon" else None)
        real.step()
        states = {name: tensor for name, tensor in real.state_tensors().items() if not name.endswith("|step")}
    assert plan.weights == sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
    assert plan.gradients == sum(parameter.grad.nbytes for parameter in model.parameters())
    assert plan.optimizer == sum(tensor.nbytes for tensor in states.values())
    assert plan.total == plan.weights + plan.gradients + plan.optimizer + plan.activations


def test_frozen_parameters_have_no_gradient():
    model = build(CASES["gpt2"][1])
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    plan = training_memory(model, ids())
    assert plan.gradients == plan.optimizer == plan.activations == 0 < plan.weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ["gpt2", "llama"])
def test_the_cache_against_real_tensors(case, dtype):
    _, config, _ = CASES[case]
    model, cache = GPT(config).to(dtype), None
    cache = model.new_cache()
    with torch.no_grad():
        model(torch.zeros(3, 17, dtype=torch.long), cache=cache)
    kept = {}
    for block in cache:
        for value in vars(block.self_attention).values():
            if isinstance(value, torch.Tensor):
                kept[value.data_ptr()] = value.nbytes
    plan = generation_memory(build(config), 3, 17, dtype=dtype)
    assert plan.cache == sum(kept.values()) > 0
    assert plan.weights == sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])


def test_the_printed_table():
    plan = training_memory(build(GPT2["small"]), {"input_ids": torch.zeros(1, 16, dtype=torch.long)})
    lines = str(plan).splitlines()
    assert lines[0].split() == ["weights", "498", "MB"] and lines[-1].split()[0] == "total"
    assert str(generation_memory(build(LLAMA["7b"]), 1, 2048, dtype=torch.bfloat16)).splitlines() == [
        "weights        13.5 GB",
        "cache           1.1 GB",
        "total          14.6 GB",
    ]


@pytest.mark.parametrize(
    ("plan", "advice"),
    [
        (Memory(100, 100, 200, 3000), "make batch × length at most 17% of what it is, and accumulate gradients$"),
        (Memory(400, cache=2000), "make batch × length at most 25% of what it is$"),
        (Memory(300, 300, 600, 10), "the parameters alone do not fit: take a smaller model, or shard it"),
        (Memory(2000, cache=10), "the weights alone do not fit: take a smaller model or a smaller dtype"),
    ],
)
def test_what_does_not_fit_is_refused_with_advice(plan, advice):
    with pytest.raises(ValueError, match=f"^this needs .* but cuda has 1 kB free; {advice}"):
        plan.require("cuda", free=1000)
    plan.require("cuda", free=4000)


def test_the_advice_fits():
    config, batch = CASES["gpt2"][1], ids(64, 24)
    plan = training_memory(build(config), batch)
    free = plan.weights * 8
    with pytest.raises(ValueError, match="batch × length at most") as refused:
        plan.require(free=free)
    share = float(str(refused.value).split("at most ")[1].split("%")[0]) / 100
    training_memory(build(config), ids(int(64 * share), 24)).require(free=free)


def test_free_memory(monkeypatch, tmp_path):
    free = available_memory()
    assert free is None or 1e7 < free < 1e14
    files = {
        "/proc/meminfo": "MemTotal: 90 kB\nMemAvailable:    70 kB\n",
        "/sys/fs/cgroup/memory.max": "60000",
        "/sys/fs/cgroup/memory.current": "20000",
    }
    for path, text in files.items():
        (tmp_path / path.replace("/", "_")).write_text(text)
    monkeypatch.setattr(MODULE, "Path", lambda path: tmp_path / path.replace("/", "_"))
    assert available_memory() == 40_000
    (tmp_path / "_sys_fs_cgroup_memory.max").write_text("max\n")
    assert available_memory() == 71_680
    (tmp_path / "_proc_meminfo").unlink()
    assert available_memory() is None
    Memory(10**18).require()  # nobody knows: not refused


def test_a_mixture_of_experts_is_refused_by_name():
    model = build(small(MIXTRAL["8x7b"], kv_heads=2))
    with pytest.raises(ValueError, match="the shapes in GPT depend on values"):
        training_memory(model, ids())


def test_unknown_optimizer():
    with pytest.raises(ValueError, match="optimizer='lion' is unknown; choose one of adamw, muon, sgd"):
        training_memory(nn.Linear(2, 2), {}, optimizer="lion")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1.5e6, "1.5 MB"), (999.9e6, "1.0 GB"), (5e12, "5,000.0 GB")],
)
def test_readable(size, text):
    assert partial(MODULE.readable)(size) == text


def bytes_of(tensors) -> int:
    """Of what this process has of them."""
    return sum(getattr(each, "to_local", lambda each=each: each)().nbytes for each in tensors)


def one_of_several(rank: int, case: str, parallel: str, muon: bool) -> Memory:
    """A step, and what this process holds of it."""
    kind, config, batch = SEVERAL[case]
    torch.manual_seed(0)
    model, context = kind(config), DistributedContext.current()

    def loss(model, batch):
        out = model(**batch)
        every = [getattr(out, name, None) for name in ("logits", "pooler_output")]
        every = [each for each in every if each is not None]
        return sum(each.sum() for each in every), len(batch["input_ids"])

    if parallel == "tp":
        parallelize(model, init_device_mesh("cpu", (context.world_size,)))
    spread = loss if parallel == "tp" else ParallelLoss(model, loss, context, parallel)
    seen = {}
    if parallel == "tp":  # torch takes no lists of whole and split ones
        several = [optimizers(nn.ParameterDict({"one": each}), lr=1e-3) for each in model.parameters()]
    else:
        several = [optimizers(model, lr=1e-3, muon_lr=0.02 if muon else None)]

    def local(tensor):
        return getattr(tensor, "_local_tensor", tensor)

    def pack(tensor):
        address = local(tensor).untyped_storage().data_ptr()
        if address not in {local(each).untyped_storage().data_ptr() for each in [*model.parameters(), *batch.values()]}:
            seen.setdefault(address, local(tensor))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        total, _ = spread(model, batch)
    activations = sum(each.untyped_storage().nbytes() for each in seen.values())
    total.backward()
    gradients = bytes_of(each.grad for each in model.parameters())
    for each in several:
        each.step()
    states = [(name, state) for each in several for name, state in each.state_tensors().items()]
    states = bytes_of(state for name, state in states if not name.endswith("|step"))
    return Memory(bytes_of([*model.parameters(), *model.buffers()]), gradients, states, activations)


SEVERAL = {
    "gpt2, a window": (GPT, small(GPT2["small"], mechanism=BlockSparseConfig(), mask=sliding_window(40)), ids(1, 300)),
    "llama": (GPT, small(LLAMA["7b"], kv_heads=2, qk_norm="layer"), ids(3, input_ids=1)),
    "bert": (Encoder, replace(small(BERT["base"]), vocab_size=301), ids(5, input_ids=1)),
}


@pytest.mark.parametrize(
    ("case", "parallel", "muon"),
    [
        ("gpt2, a window", "ddp", True),
        ("gpt2, a window", "fsdp", True),
        ("llama", "fsdp", False),
        ("llama", "tp", False),
        ("bert", "fsdp", True),
        ("bert", "tp", False),
    ],
)
def test_what_each_of_two_processes_holds(case, parallel, muon):
    _, config, batch = SEVERAL[case]
    plan = training_memory(build(config), batch, optimizer="muon" if muon else "adamw", world_size=2, parallel=parallel)
    alone = training_memory(build(config), batch, optimizer="muon" if muon else "adamw")
    first, second = run_ranks(one_of_several, 2, case, parallel, muon)
    assert replace(plan, gathered=0) == first
    assert second.weights <= first.weights and second.activations <= first.activations
    if parallel == "fsdp":
        assert first.weights + second.weights == alone.weights
        assert first.optimizer + second.optimizer == alone.optimizer
    if parallel == "tp":
        assert first.weights == second.weights and first.activations < alone.activations
    assert (plan.gathered > 0) == (parallel == "fsdp")


def fsdp_with_experts(rank: int) -> tuple[Memory, int]:
    """A step, by torch's own tracker: what belongs to this process, and what it has borrowed at the peak."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    torch.manual_seed(0)
    model = GPT(EXPERTS)
    spread = ParallelLoss(model, window_loss, DistributedContext.current(), "fsdp")
    optimizer = optimizers(model, lr=1e-3, muon_lr=0.02)
    with FSDPMemTracker(spread.engine) as tracker:
        spread(model, torch.randint(0, 300, (4, 17)))[0].backward()
    borrowed = ("Unsharded Param", "All Gather", "Reduce Scatter")
    peak = {str(kind).partition(".")[2]: size for kind, size in tracker.get_tracker_snapshot("peak")[CPU].items()}
    gradients = bytes_of(each.grad for each in model.parameters())
    optimizer.step()
    states = bytes_of(state for name, state in optimizer.state_tensors().items() if not name.endswith("|step"))
    weights = bytes_of([*model.parameters(), *model.buffers()])
    return Memory(weights, gradients, states), sum(peak[name.upper().replace(" ", "_")] for name in borrowed)


CPU = torch.device("cpu")
EXPERTS = replace(small(MIXTRAL["8x7b"], kv_heads=2, experts=3), layers=3, tie_embeddings=True)


def test_blocks_of_experts_are_shared_out_whole():
    """What stands outside of the blocks is the embedding and a norm; the tracker takes their gradients for its own."""
    model = build(EXPERTS)
    plan = parameter_memory(model, optimizer="muon", sharded=2)
    (first, borrowed), (second, same) = run_ranks(fsdp_with_experts, 2)
    assert replace(plan, gathered=0) == first and second.weights <= first.weights
    outside = model.embedding.weight.nbytes + model.decoder.norm.weight.nbytes
    padding = 4 * 256  # of tensors, to a multiple of that
    assert 0 <= borrowed - (plan.gathered - outside) < padding and borrowed == same


@pytest.mark.parametrize(
    "context, options, words",
    [
        (
            DistributedContext(),
            {"fp32": True},
            "full, which asked for .* more; make .*; or compute in bf16; or shard weights and",
        ),
        (
            DistributedContext(),
            {"keeps_all": True},
            r"for a step; or compute parts of it twice \(--checkpoint-activations blocks\); or",
        ),
        (
            DistributedContext(1, 2),
            {"parallel": "ddp"},
            "full in process 1 of 2, .* step; or shard weights and optimizer over",
        ),
        (
            DistributedContext(1, 2),
            {"parallel": "fsdp"},
            "or shard the model over more processes; or take a smaller model$",
        ),
    ],
)
def test_a_full_memory_says_what_to_change(context, options, words):
    with pytest.raises(ValueError, match=words), explain_oom(context, **options):
        torch.empty(2**55)
    with pytest.raises(ValueError, match="asked for 2.00 GiB more"), explain_oom(context, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of …")
    with pytest.raises(RuntimeError, match="^something else$"), explain_oom(context, **options):
        raise RuntimeError("something else")


def test_the_advice_is_the_first_way_that_fits():
    config, batch = CASES["gpt2"][1], ids(8, 24)
    plan = partial(training_memory, build(config), batch)
    free = int(plan(checkpoint_activations="blocks").total / MODULE.USABLE_FRACTION) + 1
    ways = {
        "--nothing": plan,
        "--checkpoint-activations blocks": partial(plan, checkpoint_activations="blocks"),
        "--parallel fsdp": partial(plan, world_size=2, parallel="fsdp"),
    }
    with pytest.raises(ValueError, match=r"free; --checkpoint-activations blocks takes [\d.]+ MB$"):
        plan().require(free=free, instead=ways)
    with pytest.raises(ValueError, match="make batch × length at most"):
        plan().require(free=free, instead={"--nothing": plan})


def test_a_cpu_is_for_all_processes(monkeypatch):
    monkeypatch.setattr(MODULE, "available_memory", lambda device: 1000)
    Memory(500).require(processes=1)
    Memory(500).require("cuda", processes=2)
    with pytest.raises(ValueError, match="cpu has 500 B free"):
        Memory(500).require(processes=2)


def test_an_unknown_way_to_share():
    with pytest.raises(ValueError, match="parallel='zero' is unknown; choose 'ddp', 'fsdp' or 'tp'"):
        training_memory(nn.Linear(2, 2), {}, parallel="zero")
    with pytest.raises(ValueError, match="kv_heads=2 can't be split 4 ways; use 2 processes"):
        training_memory(build(CASES["llama"][1]), CASES["llama"][2], world_size=4, parallel="tp")
