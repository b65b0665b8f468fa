# %% [markdown]
# # Exercise 36 · Many devices
#
# Three tasks, 10 points, about 50 minutes. They belong to lesson [36 Many devices](../notebooks/36_many_devices.ipynb).
# Run the cells from the top; fill in where it says *your turn*, then run the check below it. You may check as often as
# you like. Tasks 1 and 2 are the core, about 30 minutes; task 3 is for those who want more.
#
# Ranks are simulated here: a list holds what each of them has, and an object that you are given carries what they send. The
# checks count it. The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0

# %%
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from txgrade import check


class Wire(NamedTuple):
    """Two ranks swap tensors: `swap(one, other, from_one, from_other)` returns what `one` and what `other` receives."""

    swap: Callable[[int, int, Tensor, Tensor], tuple[Tensor, Tensor]]


class Group(NamedTuple):
    """All ranks together. Both take a list with a tensor of each rank, and return one tensor."""

    total: Callable[[list[Tensor]], Tensor]  # the sum over ranks
    greatest: Callable[[list[Tensor]], Tensor]  # the maximum over ranks, number by number


def counted_wire(world: int, cut: bool = False) -> tuple[Wire, Callable]:
    """A wire, and a report of how many messages and numbers each rank has sent. Where it is cut, zeros arrive."""
    messages, numbers = [0] * world, [0] * world

    def swap(one: int, other: int, from_one: Tensor, from_other: Tensor) -> tuple[Tensor, Tensor]:
        for rank, tensor in ((one, from_one), (other, from_other)):
            messages[rank] += 1
            numbers[rank] += tensor.nbytes // 4
        sent = from_other.clone(), from_one.clone()
        return tuple(map(torch.zeros_like, sent)) if cut else sent

    return Wire(swap), lambda: (tuple(messages), tuple(numbers))


def counted_group(lost: int | None = None) -> tuple[Group, Callable]:
    """A group, and a report of how many numbers each rank has put in. Nothing arrives from the rank that is lost."""
    numbers = 0

    def arriving(parts: list[Tensor]) -> Tensor:
        nonlocal numbers
        numbers += parts[0].nbytes // 4
        return torch.stack([part for rank, part in enumerate(parts) if rank != lost])

    return Group(lambda parts: arriving(parts).sum(dim=0), lambda parts: arriving(parts).amax(dim=0)), lambda: numbers

# %% tags=["variant"]
from txgrade import variant

# Of task 1: bytes per parameter.
WEIGHTS, GRADIENTS, OPTIMIZER = variant((2, 2, 12), (2, 4, 12), (2, 2, 6), (2, 4, 6))

# %% [markdown]
# ### Task 1 · How many texts fit?   ●●○○○ · 10 minutes · 2 points
#
# A model of $N$ parameters is trained in mixed precision on several ranks: {{WEIGHTS}} bytes per parameter for weights, {{GRADIENTS}} for
# gradients, {{OPTIMIZER}} for the optimizer with its master copy. ZeRO's stage 1 shards the optimizer's, stage 2 the gradients, too,
# stage 3 the weights, too; 0 nothing. A block keeps $16\,d$ numbers per token; with checkpointing $d$, and $16\,d$ more for the
# one block at hand. They have 2 bytes each. The $V$ log-probabilities of each token have 4.
#
# How many texts of $n$ tokens fit into a rank's memory? (`memory` is in bytes, $N$ a multiple of the number of ranks. Return 0
# if not even one text fits.)
#
# <details><summary>Hint 1: what is shared out?</summary>
#
# Only what belongs to the parameters. Each rank has activations of its own texts, whatever the stage.
# </details>
# <details><summary>Hint 2: the first part</summary>
#
# `N * ({{WEIGHTS}} / (ranks if stage >= 3 else 1) + …)`
# </details>
# <details><summary>Hint 3: the second part</summary>
#
# Bytes per token: `2 * numbers + 4 * V`, where `numbers` is $16 d L$, or $dL + 16d$. Take the free memory, divide by $n$
# times that, round down, and mind that it may be negative.
# </details>

# %% nbgrader={"grade_id": "room", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def room(N: int, d: int, L: int, V: int, n: int, memory: int, ranks: int, stage: int, checkpointing: bool) -> int:
    """How many texts of n tokens one rank has room for."""
    ### BEGIN SOLUTION
    shared = [ranks if stage >= least else 1 for least in (3, 2, 1)]
    held = sum(N * size / share for size, share in zip((WEIGHTS, GRADIENTS, OPTIMIZER), shared))
    numbers = d * L + 16 * d if checkpointing else 16 * d * L
    return max(0, math.floor((memory - held) / (n * (2 * numbers + 4 * V))))
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-room", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("room") as show:
    def given(stage, checkpointing, N=1_500_000_000, memory=80_000_000_000):
        return N, 1600, 48, 50_257, 1024, memory, 4, stage, checkpointing


    for stage in range(4):
        show(room(*given(stage, False)), f"1.5 billion parameters on 4 ranks of 80 GB, stage {stage}")
    show(room(*given(3, True)), "stage 3, with checkpointing")
    show(room(*given(0, True)), "stage 0, with checkpointing")
    show(room(*given(0, True, N=9_000_000_000)), "9 billion on the same, stage 0")
    show(room(*given(3, True, N=9_000_000_000)), "9 billion on the same, stage 3")
    show([room(0, 2, 3, 5, 7, memory, 4, 0, False) for memory in (4451, 4452, 0)],
         "no parameters, d = 2, L = 3, V = 5, n = 7: 4,451, 4,452 and no bytes")
    N, memory = 1_000_000 * show.random_size(800, 3000), 1_000_000_000 * show.random_size(60, 140)
    show([room(*given(stage, True, N, memory)) for stage in range(4)], f"N = {N:,}, {memory:,} bytes, with checkpointing")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", ("txlib", "__closure__", "cell_contents"))


def counted(sizes=(WEIGHTS, GRADIENTS, OPTIMIZER), least=(3, 2, 1), width=2, logits=4, end=lambda x: max(0, math.floor(x)),
            activations=lambda ranks: 1, at_hand=16, whole=lambda d, L: 16 * d * L, inputs=lambda d, L: d * L, tokens=lambda n: n):
    """The count with something wrong."""
    def answer(N, d, L, V, n, memory, ranks, stage, checkpointing):
        held = sum(N * size / (ranks if stage >= begin else 1) for size, begin in zip(sizes, least))
        numbers = inputs(d, L) + at_hand * d if checkpointing else whole(d, L)
        return end((memory - held) / (tokens(n) * (width * numbers + logits * V) / activations(ranks)))
    return answer


mistake("room", counted(sizes=(WEIGHTS, GRADIENTS, OPTIMIZER - 4)),
        "The master copy is missing: 4 of the optimizer's {{OPTIMIZER}} bytes per parameter.")
mistake("room", counted(sizes=(WEIGHTS, GRADIENTS, 4)),
        "The optimizer has {{OPTIMIZER}} bytes per parameter: its two means, and the master copy of 4.")
mistake("room", counted(sizes=(4, 4, 8)), "These are the bytes of training in 32 bits: here weights have {{WEIGHTS}}, "
        "gradients {{GRADIENTS}}, and the optimizer {{OPTIMIZER}}.")
mistake("room", counted(least=(1, 2, 3)), "The stages are the other way round: the optimizer is sharded first, the weights last.")
mistake("room", counted(least=(1, 1, 1)), "Stage 1 already shards everything here. It shards the optimizer's {{OPTIMIZER}} bytes only.")
mistake("room", counted(least=(4, 3, 2)),
        "Each stage begins one too late: stage 1 shards the optimizer's part, 2 the gradients' as well, 3 the weights' as well.")
mistake("room", counted(least=(9, 9, 9)), "Nothing is sharded here, whatever the stage.")
for whole in (lambda d, L: 16 * d, lambda d, L: 16 * L, lambda d, L: d * L, lambda d, L: L):
    mistake("room", counted(whole=whole), "A factor is missing without checkpointing: L blocks keep 16 · d numbers each per token.")
for inputs in (lambda d, L: d, lambda d, L: 0):
    mistake("room", counted(inputs=inputs), "With checkpointing each of the L blocks still keeps its input, d numbers per token.")
mistake("room", counted(at_hand=1), "The one block at hand keeps 16 · d numbers per token, not d.")
mistake("room", counted(width=1), "Activations have 2 bytes each: multiply their number by 2.")
mistake("room", counted(width=0), "The activations are missing: 2 bytes for each number that the blocks keep.")
mistake("room", counted(sizes=(0, 0, 0)), "Weights, gradients and optimizer take no room here. Only what they leave free is for texts.")
mistake("room", counted(logits=1), "A log-probability has 4 bytes.")
mistake("room", counted(tokens=lambda n: 1), "These are tokens. A text has n of them.")
equivalent("room", "N * size / share → N * size // share", "N is a multiple of the number of ranks, so the quotient is whole.")
equivalent("room", "(memory - held) / (n * (2 * numbers + 4 * V)) → (memory - held) // (n * (2 * numbers + 4 * V))",
           "It is rounded down anyway.")
mistake("room", counted(logits=0), "The log-probabilities are missing: V numbers of 4 bytes per token.")
mistake("room", counted(width=4), "Activations have 2 bytes in mixed precision, not 4.")
mistake("room", counted(at_hand=0), "With checkpointing one block at a time is computed again, and keeps its 16 d for a moment.")
mistake("room", counted(activations=lambda ranks: ranks),
        "Activations are shared out over the ranks here. They belong to a rank's own texts; only what belongs to the "
        "parameters is sharded.")
mistake("room", counted(end=math.floor), "Where not even the parameters fit, the answer is 0, not a negative number.")
mistake("room", counted(end=lambda x: max(0, math.ceil(x))), "Round down: a part of a text does not fit.")


def tried(N, d, L, V, n, memory, ranks, stage, checkpointing):
    W, G, O = WEIGHTS, GRADIENTS, OPTIMIZER
    free = memory - N * [W + G + O, W + G + O / ranks, W + (G + O) / ranks, (W + G + O) / ranks][stage]
    one, texts = n * (2 * d * (L + 16 if checkpointing else 16 * L) + 4 * V), 0
    while (texts + 1) * one <= free:
        texts += 1
    return texts


alternative("room", tried)

# %% [markdown]
# ### Task 2 · A reduce-scatter in few messages   ●●●●○ · 20 minutes · 4 points
#
# A ring of $w$ ranks sends $w - 1$ messages, one after another. If each message takes long to arrive, few large ones are
# better than many small ones. With $w = 2^k$ ranks, $k$ messages are enough: in each round, a rank *swaps with a partner*.
# It keeps one half of what it holds, sends the other half, and adds what it receives to the half it keeps.
#
# Return, for each rank, its share of the sum: rank $r$ has chunk number $r$. `tensors` holds what each rank starts with;
# leave these tensors as they are. The length is divisible by $w$. Ranks may exchange numbers through `wire.swap` only; each
# may send at most $k$ messages and $N (w - 1) / w$ numbers. One check cuts the wire, so that zeros arrive: each rank is then left
# with its own numbers.
#
# <details><summary>Hint 1: who is my partner?</summary>
#
# First the one `distance = w // 2` away, then a half of that, and so on. `rank ^ distance` is the partner: they differ in one
# bit.
# </details>
# <details><summary>Hint 2: which half do I keep?</summary>
#
# The lower one of the two keeps the first half, and sends the second. So after the first round all ranks below $w / 2$ hold the
# first half of the tensor.
# </details>
# <details><summary>Hint 3: one swap</summary>
#
# `got, back = wire.swap(low, high, held[low][half:], held[high][:half])`. Then `held[low] = held[low][:half] + got`, and
# `held[high] = held[high][half:] + back`.
# </details>

# %% nbgrader={"grade_id": "halving", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def halving(tensors: list[Float[Tensor, "N"]], wire: Wire) -> list[Float[Tensor, "share"]]:
    """Rank r's share of the sum: chunk number r."""
    ### BEGIN SOLUTION
    held, distance = list(tensors), len(tensors) // 2
    while distance:
        half = len(held[0]) // 2
        for low in range(len(held)):
            high = low ^ distance
            if low < high:
                got, back = wire.swap(low, high, held[low][half:], held[high][:half])
                held[low], held[high] = held[low][:half] + got, held[high][half:] + back
        distance //= 2
    return held
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-halving", "grade": true, "points": 4, "solution": false, "locked": true, "schema_version": 3}
with check("halving") as show:
    for world, width in ((2, 3), (4, 2), (8, show.random_size(1, 4))):
        tensors = [show.randn(world * width) for _ in range(world)]
        before = [tensor.clone() for tensor in tensors]
        wire, sent = counted_wire(world)
        shares = halving(tensors, wire)
        messages, numbers = sent()
        show(shares, f"{world} ranks: the shares")
        show(max(messages) <= math.log2(world), f"{world} ranks: at most {math.log2(world):.0f} messages each")
        show(0 < max(numbers) <= (world - 1) * width, f"{world} ranks: at most {(world - 1) * width} numbers each")
        show(min(numbers) > 0, f"{world} ranks: each sends something")
        show(all(map(torch.equal, tensors, before)), f"{world} ranks: the tensors are left as they are")
        wire, _ = counted_wire(world, cut=True)
        show(halving([tensor.clone() for tensor in before], wire), f"{world} ranks, the wire cut: zeros arrive")
    wire, _ = counted_wire(1)
    show(halving([show.randn(2)], wire), "one rank alone")

# %% tags=["mistakes"]
def swapped(distances=lambda w: [w >> each for each in range(1, w.bit_length())], add=lambda keep, got: keep + got,
            flip=False, whole=False, end=lambda held, w: held):
    """Rounds of swaps with something wrong."""
    def answer(tensors, wire):
        held = [tensor.clone() for tensor in tensors]
        for distance in distances(len(held)):
            half = len(held[0]) // 2
            for low in range(len(held)):
                high = low ^ distance
                if low < high:
                    if whole:
                        got, back = wire.swap(low, high, held[low], held[high])
                        first, second = (held[low] + got), (held[high] + back)
                        held[low], held[high] = first[:half], second[half:]
                        continue
                    keep, give = (slice(half, None), slice(half)) if flip else (slice(half), slice(half, None))
                    got, back = wire.swap(low, high, held[low][give], held[high][keep])
                    held[low], held[high] = add(held[low][keep], got), add(held[high][give], back)
        return end(held, len(tensors))
    return answer


def in_a_ring(tensors, wire):
    world = len(tensors)
    chunks = [list(tensor.clone().chunk(world)) for tensor in tensors]
    for step in range(world - 1):
        sent = [chunks[rank][(rank - step - 1) % world] for rank in range(world)]
        for rank in range(world):
            receiver, number = (rank + 1) % world, (rank - step - 1) % world
            _, got = wire.swap(rank, receiver, sent[rank], sent[receiver][:0])
            chunks[receiver][number] = chunks[receiver][number] + got
    return [chunks[rank][rank] for rank in range(world)]


def looked(tensors, wire):
    return list(torch.stack(tensors).sum(dim=0).chunk(len(tensors)))


def looked_and_sent(tensors, wire):
    halving(tensors, wire)
    return looked(tensors, wire)


def through_the_first(tensors, wire):
    total = tensors[0].clone()
    for rank in range(1, len(tensors)):
        got, _ = wire.swap(0, rank, tensors[0][:0], tensors[rank])
        total = total + got
    chunks = list(total.chunk(len(tensors)))
    for rank in range(1, len(tensors)):
        wire.swap(0, rank, chunks[rank], tensors[rank][:0])
    return chunks


def one_sided(tensors, wire):
    held, distance = list(tensors), len(tensors) // 2
    while distance:
        half = len(held[0]) // 2
        for low in range(len(held)):
            high = low ^ distance
            if low < high:
                got, _ = wire.swap(low, high, held[low][half:], held[high][:half])
                held[low], held[high] = held[low][:half] + got, held[high][half:]
        distance //= 2
    return held


def in_place(tensors, wire):
    held, distance = list(tensors), len(tensors) // 2
    while distance:
        half = len(held[0]) // 2
        for low in range(len(held)):
            high = low ^ distance
            if low < high:
                got, back = wire.swap(low, high, held[low][half:], held[high][:half])
                held[low], held[high] = held[low][:half].add_(got), held[high][half:].add_(back)
        distance //= 2
    return held


mistake("halving", looked, "Nothing has travelled: the sum was taken over a list that no rank could see. Use `wire.swap`.")
mistake("halving", looked_and_sent,
        "Something has travelled, but the sum was taken over a list that no rank could see. Add what `wire.swap` returns.")
mistake("halving", swapped(add=lambda keep, got: keep), "What arrives is never added to the half that is kept.")
mistake("halving", swapped(add=lambda keep, got: keep - got), "What arrives is subtracted. The sum was asked for.")
mistake("halving", one_sided, "Only the lower rank of the two adds what it has received. Both do.")
mistake("halving", swapped(distances=lambda w: [w >> 1] if w > 1 else []),
        "One round only. Go on, with half the distance each time, until partners are neighbours.")
equivalent("halving", "held[0] → held[1]", "All ranks hold equally much in each round.")
equivalent("halving", "held[0] → held[-1]", "All ranks hold equally much in each round.")
equivalent("halving", "range(len(held)) → range(len(held) - 1)", "The last rank is never the lower one of two.")
equivalent("halving", "low < high → low <= high", "A distance of at least 1 lies between partners.")
equivalent("halving", "wire.swap(low, high, held[low][half:], held[high][:half]) → wire.swap(high, low, held[low][half:], held[high][:half])",
           "Both send equally much, and a swap hands out by position, whatever the names.")
for name in ("low", "high"):
    equivalent("halving", f"held[{name}][half:] → held[{name}][-half:]", "It is twice `half` long, so both are its second half.")
mistake("halving", through_the_first,
        "Everything goes through rank 0, which sends and receives w − 1 messages while the others wait.")
mistake("halving", in_a_ring, "This is the ring: right, and the numbers are as few as can be, but it takes w − 1 messages.")
mistake("halving", swapped(whole=True), "Right, but each swap sends everything a rank holds. Only the half that it gives away need travel.")
mistake("halving", swapped(distances=lambda w: [w >> each for each in range(1, w.bit_length())][::-1]),
        "The distances grow from 1. The shares are whole, but lie with the wrong ranks: begin with the farthest partner, w / 2.")
mistake("halving", swapped(flip=True), "The wrong half is kept: the lower one of the two keeps the first half.")
mistake("halving", swapped(add=lambda keep, got: got), "What arrives replaces what was kept. It has to be added.")
mistake("halving", swapped(add=lambda keep, got: (keep + got) / 2), "This is the mean. The sum was asked for.")
mistake("halving", swapped(distances=lambda w: [w // 2] * (w.bit_length() - 1)),
        "Each round has the same partner. After the first, there is nothing new to learn from it: halve the distance.")
mistake("halving", in_place, "The shares are right, but the ranks' own tensors have been changed: `+` makes a new one, `+=` does not.")


def recursive(tensors, wire, ranks=None):
    ranks = ranks or list(range(len(tensors)))
    if len(tensors) == 1:
        return [tensors[0]]
    half, middle = len(tensors[0]) // 2, len(tensors) // 2
    lows, highs = [], []
    for place in range(middle):
        got, back = wire.swap(ranks[place], ranks[place + middle], tensors[place][half:], tensors[place + middle][:half])
        lows.append(tensors[place][:half] + got)
        highs.append(tensors[place + middle][half:] + back)
    return recursive(lows, wire, ranks[:middle]) + recursive(highs, wire, ranks[middle:])


alternative("halving", recursive)

# %% [markdown]
# ### Task 3 · A vocabulary on several ranks   ●●●●○ · 20 minutes · 4 points
#
# The output matrix is split by *columns*: each rank has the logits of its own part of the vocabulary, all parts equally
# wide, rank 0 the first. Return the mean cross-entropy. But logits must not travel: of each token three numbers do.
#
# `group.total(parts)` sums over the ranks, `group.greatest(parts)` takes the maximum; `parts` has a tensor for each rank. No rank
# may see another's logits in any other way. (In one check, what one rank puts in never arrives: the loss is then that of a
# vocabulary without its part.)
#
# <details><summary>Hint 1: which three?</summary>
#
# The loss of a token is $m + \ln \sum_i e^{x_i - m} - x_{\text{target}}$: a maximum, a sum, and the logit of the target.
# </details>
# <details><summary>Hint 2: the target's logit</summary>
#
# One rank has it. The others put in 0, and the sum over ranks is it.
# </details>
# <details><summary>Hint 3: where is the target?</summary>
#
# `place = target - rank * width`; it is here if `(0 <= place) & (place < width)`. Clamp before you gather.
# </details>

# %% nbgrader={"grade_id": "vocabulary", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def split_loss(logits: list[Float[Tensor, "n width"]], target: Int[Tensor, "n"], group: Group) -> Float[Tensor, ""]:
    """Mean cross-entropy, where each rank holds the logits of a part of the vocabulary."""
    ### BEGIN SOLUTION
    width = logits[0].shape[-1]
    m = group.greatest([part.amax(dim=-1) for part in logits])                     # (n,)
    l = group.total([(part - m[:, None]).exp().sum(dim=-1) for part in logits])    # (n,)
    hits = []
    for rank, part in enumerate(logits):
        place = target - rank * width                                              # (n,)
        own = part.gather(1, place.clamp(0, width - 1)[:, None])[:, 0]             # (n,)
        hits.append(torch.where((place >= 0) & (place < width), own, 0.0))
    return (m + l.log() - group.total(hits)).mean()
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-vocabulary", "grade": true, "points": 4, "solution": false, "locked": true, "schema_version": 3}
with check("vocabulary") as show:
    for ranks, n, width in ((1, 4, 6), (2, 5, 3), (4, show.random_size(3, 8), 5)):
        logits = [2 * show.randn(n, width) for _ in range(ranks)]
        target = torch.tensor([show.random_size(0, ranks * width - 1) for _ in range(n)])
        group, sent = counted_group()
        show(split_loss(logits, target, group), f"{ranks} ranks with {width} tokens of the vocabulary each")
        show(sent() == 3 * n, f"{ranks} ranks: three numbers per token travel: a maximum, a sum, and the target's logit")

    def loss(logits, target, lost=None):
        group, _ = counted_group(lost)
        return split_loss(logits, target, group)

    show(loss([part + 200 for part in logits], target), "large logits")
    show(loss([part - 300 for part in logits], target), "very negative logits")
    far = [logits[0] - 150, *logits[1:]]
    show(loss(far, torch.zeros_like(target)), "one rank's logits far below the others'; its are the targets")
    uneven = [logits[0], *(part + torch.tensor([150.0, 0, 0, 0, 0]) for part in logits[1:])]
    show(loss(uneven, target), "some logits of a rank far above its others")
    ends = torch.tensor([0, width - 1, width, 2 * width - 1, 4 * width - 1])
    show(loss([2 * show.randn(len(ends), width) for _ in range(4)], ends), "targets at the beginning and at the end of a rank's part")
    lost = show.random_size(0, 3)
    there = (target % width + (lost + 1 + torch.arange(n) % 3) * width) % (4 * width)
    show(loss(logits, there, lost), f"nothing arrives from rank {lost}; others hold the targets")
    others = [part + show.randn(n, width) if rank == lost else part for rank, part in enumerate(logits)]
    one, other = (loss(parts, target % width + lost * width, lost) for parts in (logits, others))
    show(one - other, f"nothing arrives from rank {lost}, which holds the targets: what changes when its logits change")

# %% tags=["mistakes"]
def parted(m=lambda logits, group: group.greatest([part.amax(-1) for part in logits]),
           l=lambda logits, m, group: group.total([(part - m[:, None]).exp().sum(-1) for part in logits]),
           inside=lambda place, width: (place >= 0) & (place < width),
           shift=lambda target, rank, width: target - rank * width, end=lambda losses: losses.mean(), sign=1):
    """The loss with something wrong."""
    def answer(logits, target, group):
        width = logits[0].shape[-1]
        greatest = m(logits, group)
        total = l(logits, greatest, group)
        hits = []
        for rank, part in enumerate(logits):
            place = shift(target, rank, width)
            own = part.gather(1, place.clamp(0, width - 1)[:, None])[:, 0]
            hits.append(torch.where(inside(place, width), own, 0.0))
        return end(greatest + total.log() - sign * group.total(hits))
    return answer


def collected(logits, target, group):
    n, width = logits[0].shape
    rows = []
    for rank, part in enumerate(logits):
        row = torch.zeros(n, len(logits) * width)
        row[:, rank * width : (rank + 1) * width] = part
        rows.append(row)
    return torch.nn.functional.cross_entropy(group.total(rows), target)


def all_looked_at(logits, target, group):
    split_loss(logits, target, group)
    return torch.nn.functional.cross_entropy(torch.cat(logits, dim=-1), target)


def hit_not_sent(logits, target, group, again=False):
    own = torch.stack([part.logsumexp(-1) for part in logits])
    m = group.greatest(list(own))
    L = m + group.total(list((own - m).exp())).log()
    if again:
        group.total(list(own))
    return (L - torch.cat(logits, dim=-1)[torch.arange(len(target)), target]).mean()


def own_maxima(logits, target, group):
    parts = [(part - part.amax(-1, keepdim=True)).exp().sum(-1) for part in logits]
    return parted(l=lambda logits, m, group: group.total(parts))(logits, target, group)


def own_losses(logits, target, group):
    width, found = logits[0].shape[-1], []
    for rank, part in enumerate(logits):
        place = target - rank * width
        loss = torch.nn.functional.cross_entropy(part, place.clamp(0, width - 1), reduction="none")
        found.append(torch.where((place >= 0) & (place < width), loss, 0.0))
    return group.total(found).mean()


mistake("vocabulary", collected, "Right, but all logits travel: V numbers per token. Three are enough.")
mistake("vocabulary", hit_not_sent,
        "The target's logit has not travelled: only one rank holds it, and the others have to be told.")
mistake("vocabulary", lambda logits, target, group: hit_not_sent(logits, target, group, again=True),
        "The target's logit is read from the rank that holds it. It has to travel, as the maximum and the sum do.")
mistake("vocabulary", all_looked_at,
        "The loss is computed from all ranks' logits at once. A rank sees its own only, and what `group` returns.")
mistake("vocabulary", parted(m=lambda logits, group: group.greatest([part.amin(-1) for part in logits])),
        "The *smallest* logits are compared. Where a rank's own logits lie far apart, their exponentials then overflow.")
mistake("vocabulary", parted(inside=lambda place, width: (place > 0) & (place < width)),
        "The first token of each rank's part is left out: place 0 is inside.")
mistake("vocabulary", parted(inside=lambda place, width: (place >= 0) & (place <= width)),
        "The first token of the next rank's part is counted here, too: a part ends at width − 1.")
mistake("vocabulary", parted(inside=lambda place, width: place >= 0),
        "Targets on later ranks are counted here, too: the place must be less than the width.")
mistake("vocabulary", parted(shift=lambda target, rank, width: target - rank),
        "Rank r's part begins at r · width, not at r.")
mistake("vocabulary", parted(sign=0), "The target's logit is missing. The loss is the log-sum-exp *less* that.")
mistake("vocabulary", lambda logits, target, group: -split_loss(logits, target, group), "The sign is turned round: this is a log-probability.")
equivalent("vocabulary", "logits[0] → logits[-1]", "All parts are equally wide.")
mistake("vocabulary", own_losses,
        "Each rank takes a softmax over its own part. The denominator is a sum over the *whole* vocabulary.")
mistake("vocabulary", own_maxima,
        "Each rank subtracts its own maximum, and the sums are added as they are. They need the same maximum first.")
mistake("vocabulary", parted(m=lambda logits, group: torch.zeros(len(logits[0]))),
        "No maximum is subtracted. Right on paper; large logits overflow, and very negative ones vanish.")
mistake("vocabulary", parted(m=lambda logits, group: logits[0].amax(-1)),
        "Rank 0's maximum is subtracted. Where the others' logits are far larger, that overflows: take the greatest of all.")
mistake("vocabulary", parted(inside=lambda place, width: place == place),
        "Each rank puts in some logit, also those that don't hold the target. They have to put in 0.")
mistake("vocabulary", parted(inside=lambda place, width: place < width),
        "Targets on earlier ranks have a negative place here, and are counted as well. It must be at least 0, too.")
mistake("vocabulary", parted(shift=lambda target, rank, width: target),
        "The target is looked for at the same place on each rank. Rank r's part begins at r · width.")
mistake("vocabulary", parted(end=lambda losses: losses.sum()), "This is the sum over tokens. The mean was asked for.")
mistake("vocabulary", parted(sign=-1), "The target's logit is added. A likely target makes the loss *smaller*.")


def with_logsumexp(logits, target, group):
    n, width = logits[0].shape
    own = [part.logsumexp(-1) for part in logits]
    m = group.greatest(own)
    L = m + group.total([(each - m).exp() for each in own]).log()
    rank, place = target // width, target % width
    hits = [torch.where(rank == each, logits[each][torch.arange(n), place], 0.0) for each in range(len(logits))]
    return (L - group.total(hits)).mean()


def less_the_maximum(logits, target, group):
    n, width = logits[0].shape
    m = group.greatest([part.amax(-1) for part in logits])
    sums = []
    for rank, part in enumerate(logits):
        own = torch.zeros(n, 2)
        own[:, 0] = (part - m[:, None]).exp().sum(-1)
        here = target // width == rank
        own[here, 1] = (part - m[:, None])[here, target[here] % width]
        sums.append(own)
    both = group.total(sums)
    return (both[:, 0].log() - both[:, 1]).mean()


alternative("vocabulary", with_logsumexp)
alternative("vocabulary", less_the_maximum)
equivalent("vocabulary", "part.gather(1, place.clamp(0, width - 1)[:, None])[:, 0] → part.gather(1, place.clamp(0, width - 1)[:, None])[:, -1]",
           "That axis has one entry: the first is the last.")

# %%
check.summary()
