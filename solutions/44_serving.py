# %% [markdown]
# # Exercise 44 · Serving
#
# Five tasks, 14 points, about 55 minutes. They belong to lesson [44 Serving](../notebooks/44_serving.ipynb). Tasks 1 to 3
# are the *core*, about 30 minutes; tasks 4 and 5 are *more*. Run the cells from the top; fill in where it says *your turn*,
# then run the check below it. You may check as often as you like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0

# %%
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from txgrade import Inputs, check

# %% [markdown]
# ### Task 1 · Out of the pages, into a rectangle   ●●●○○ · 10 minutes · 3 points
#
# The lesson let each text attend on its own. A faster server gathers the keys of all texts first, into one rectangle, and
# attends once, with a mask. `memory` holds the keys, block by block. `tables` has a row for each text: which blocks are its
# own, in order; a text with fewer blocks than the longest has −1 at the end. `lengths` says how many tokens each text has.
#
# Return the keys of each text, one after the other, with rows of **zeros** after its end; and a mask that is `True` where
# there is a real key. Both are as long as the longest text, and no longer.
#
# <details><summary>Hint 1: one text</summary>
#
# `memory[blocks].flatten(0, 1)` joins the slots of its blocks. Only the first `length` of them are its own.
# </details>
# <details><summary>Hint 2: the −1</summary>
#
# As an index, −1 is the *last* block, without an error. What lies there belongs to another text.
# </details>

# %% nbgrader={"grade_id": "gather-pages", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def gather_pages(
    memory: Float[Tensor, "blocks size d"], tables: Int[Tensor, "texts most"], lengths: Int[Tensor, "texts"]
) -> tuple[Float[Tensor, "texts longest d"], Bool[Tensor, "texts longest"]]:
    """The keys of each text, and where there is one."""
    ### BEGIN SOLUTION
    longest = int(lengths.max())
    keys = torch.zeros(len(lengths), longest, memory.shape[2])
    for text, length in enumerate(lengths.tolist()):
        keys[text, :length] = memory[tables[text]].flatten(0, 1)[:length]
    return keys, torch.arange(longest) < lengths[:, None]
    ### END SOLUTION

# %%
def some_tables(show: Inputs, lengths: list[int], size: int) -> tuple[Int[Tensor, "texts most"], Int[Tensor, "texts"]]:
    """Tables of blocks in a random order, and the lengths as a tensor."""
    counts = [-(-length // size) for length in lengths]
    order = show.permutation(sum(counts) + 2).split([*counts, 2])[:-1]
    return torch.nn.utils.rnn.pad_sequence(list(order), batch_first=True, padding_value=-1), torch.tensor(lengths)

# %% nbgrader={"grade_id": "check-gather-pages", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("gather-pages") as show:
    for size, lengths in ((4, [6, 3, show.random_size(9, 11)]), (3, [show.random_size(4, 5), 1, 2, 6]), (4, [8, 4]), (1, [2, 5])):
        tables, counts = some_tables(show, lengths, size)
        memory = show.randn(int(tables.max()) + 3, size, 2)
        keys, real = gather_pages(memory, tables, counts)
        show([keys, real], f"blocks of {size}, lengths {lengths}")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")


def gathered(blocks_of=lambda table, size: table, length_of=lambda length, size: length, real_of=None, longest_of=None):
    """The answer with something changed."""
    def answer(memory, tables, lengths):
        size = memory.shape[1]
        longest = int(lengths.max()) if longest_of is None else longest_of(tables, size)
        keys = torch.zeros(len(lengths), longest, memory.shape[2])
        for text, length in enumerate(lengths.tolist()):
            mine = memory[blocks_of(tables[text], size)].flatten(0, 1)[:min(length_of(length, size), longest)]
            keys[text, :len(mine)] = mine
        real = torch.arange(longest) < lengths[:, None]
        return keys, real if real_of is None else real_of(longest, lengths)
    return answer


mistake("gather-pages", gathered(length_of=lambda length, size: 10**6),
        "After the end of a text there is something else in its last block, or in block −1. These rows must be zeros.")
mistake("gather-pages", gathered(length_of=lambda length, size: -(-length // size) * size),
        "The last block of a text need not be full. What follows its last token must be zeros.")
mistake("gather-pages", gathered(length_of=lambda length, size: length // size * size),
        "A last block that isn't full is missing. Its first slots hold keys as well.")
mistake("gather-pages", gathered(blocks_of=lambda table, size: table.clamp(min=0).sort().values),
        "The blocks stand in the order of the memory. The table's order is the text's.")
mistake("gather-pages", gathered(blocks_of=lambda table, size: torch.arange(len(table))),
        "You read the first blocks of the memory for every text. Its table says which are its own.")
mistake("gather-pages", gathered(real_of=lambda longest, lengths: torch.arange(longest) >= lengths[:, None]),
        "The mask is inverted: `True` means that there is a key.")
mistake("gather-pages", gathered(real_of=lambda longest, lengths: torch.arange(longest) <= lengths[:, None]),
        "The mask is one too long: a text of 3 tokens has places 0, 1 and 2.")
mistake("gather-pages", gathered(real_of=lambda longest, lengths: torch.arange(longest) > lengths[:, None]),
        "The mask is inverted: `True` means that there is a key.")
mistake("gather-pages", gathered(length_of=lambda length, size: 0), "All keys are zeros: copy those of each text.")
mistake("gather-pages", gathered(longest_of=lambda tables, size: tables.shape[1] * size),
        "The rectangle is as long as the blocks of the longest text. Make it as long as its *tokens*.")
mistake("gather-pages", lambda memory, tables, lengths: gathered()(memory.flip(1), tables, lengths),
        "The slots in each block are in the wrong order.")


def by_address(memory, tables, lengths):
    blocks, size, d = memory.shape
    place = torch.arange(int(lengths.max()))
    real = place < lengths[:, None]
    slots = tables[:, place // size] * size + place % size
    return memory.view(-1, d)[slots.clamp(min=0)] * real[..., None], real


alternative("gather-pages", by_address)

# %% [markdown]
# ### Task 2 · Empty slots, on average   ●●○○○ · 8 minutes · 2 points
#
# A request has a prompt of `prompt` tokens and writes `new` tokens. In its first step it reads the prompt, so it fills
# `prompt` slots. In each further step it fills one more; it has `new` steps. Return how many of its slots are taken but
# *empty*, as a mean over its steps: first if it reserves `prompt + most` slots at once, then if it takes blocks of `size`
# slots as it needs them.
#
# For a prompt of 3, with 2 steps, `most` 10 and blocks of 4: reserved 13, filled 3 and 4, so 10 and 9 are empty, in the mean
# 9.5. One block is enough: 1 and 0 are empty, in the mean 0.5.
#
# <details><summary>Hint 1: how many are filled</summary>
#
# `prompt + torch.arange(new)`.
# </details>
# <details><summary>Hint 2: how many blocks</summary>
#
# Rounded up: `-(-filled // size)`, or `(filled + size - 1) // size`.
# </details>

# %% nbgrader={"grade_id": "empty-slots", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def empty_slots(prompt: int, new: int, most: int, size: int) -> Float[Tensor, "2"]:
    """Mean number of empty slots: reserved, and in pages."""
    ### BEGIN SOLUTION
    filled = prompt + torch.arange(new)
    taken = (filled + size - 1) // size * size
    reserved = (prompt + most - filled).float().mean()
    return torch.stack([reserved, (taken - filled).float().mean()])
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-empty-slots", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("empty-slots") as show:
    show(empty_slots(3, 2, 10, 4), "the example")
    for size in (4, 16, 1):
        prompt, new = show.random_size(3, 30), show.random_size(5, 40)
        show(empty_slots(prompt, new, 64, size), f"prompt {prompt}, {new} new, blocks of {size}")

# %% tags=["mistakes"]
def emptied(filled_of=lambda p, n: p + torch.arange(n), reserved_of=lambda p, n, most: p + most, taken_of=None, mean=torch.mean):
    """The answer with something changed."""
    def answer(prompt, new, most, size):
        filled = filled_of(prompt, new)
        taken = -(-filled // size) * size if taken_of is None else taken_of(filled, size)
        return torch.stack([mean((reserved_of(prompt, new, most) - filled).float()), mean((taken - filled).float())])
    return answer


mistake("empty-slots", emptied(filled_of=lambda p, n: p + torch.arange(1, n + 1)),
        "In the first step only the prompt is filled: count from 0.")
mistake("empty-slots", emptied(filled_of=lambda p, n: torch.arange(n)), "The prompt fills slots as well.")
mistake("empty-slots", emptied(filled_of=lambda p, n: p + n - 1 + torch.zeros(n).long()),
        "That is the last step. Take the mean over *all* steps.")
mistake("empty-slots", emptied(reserved_of=lambda p, n, most: most), "Reserved is room for the prompt *and* for what the user allows.")
mistake("empty-slots", emptied(reserved_of=lambda p, n, most: p + n), "No server knows `new` in advance. Reserved is `prompt + most`.")
mistake("empty-slots", emptied(taken_of=lambda filled, size: filled // size * size),
        "The number of blocks must be rounded *up*: a text has never fewer slots than tokens.")
mistake("empty-slots", emptied(taken_of=lambda filled, size: (filled // size + 1) * size),
        "If a block is exactly full, no further one is taken yet.")
mistake("empty-slots", emptied(taken_of=lambda filled, size: -(-filled // size)), "That counts *blocks*. Each has `size` slots.")
mistake("empty-slots", emptied(reserved_of=lambda p, n, most: p), "Reserved is room for the prompt *and* for what the user allows.")
mistake("empty-slots", lambda prompt, new, most, size: -empty_slots(prompt, new, most, size), "Empty is what is taken minus what is filled.")
mistake("empty-slots", emptied(mean=torch.sum), "Return means over the steps, and not sums.")
mistake("empty-slots", lambda prompt, new, most, size: empty_slots(prompt, new, most, size).flip(0),
        "The order is: reserved first, then pages.")


def in_a_loop(prompt, new, most, size):
    reserved = pages = 0
    for filled in range(prompt, prompt + new):
        reserved, pages = reserved + prompt + most - filled, pages + -filled % size
    return torch.tensor([reserved / new, pages / new])


alternative("empty-slots", in_a_loop)

# %% [markdown]
# ### Task 3 · Short prompts first   ●●●○○ · 10 minutes · 3 points
#
# Plan one step. `unread` says how many tokens of each text the model has not read: 1 for a text that writes (or whose prompt
# is read up to its last token), more for a prompt. The step reads at most `budget` tokens. Those with 1 come first. What is
# left goes to the prompts, **the one with the fewest unread tokens first**, as its user gets a first token soonest; the last
# one that gets any may get only a part. Among equals, the one with the smaller index comes first. Return how many tokens
# of each text are read.
#
# For `unread` 9, 1, 5, 1 and a budget of 10: the second and fourth read 1 each, the third 5, the first the 3 that are left.
#
# <details><summary>Hint 1: one order for all</summary>
#
# Texts that write have fewer unread tokens than any prompt.
# </details>
# <details><summary>Hint 2: equals</summary>
#
# `torch.argsort(…, stable=True)` and Python's `sorted` keep equals in their order.
# </details>

# %% nbgrader={"grade_id": "short-first", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def short_first(unread: Int[Tensor, "texts"], budget: int) -> Int[Tensor, "texts"]:
    """How many tokens of each text the step reads."""
    ### BEGIN SOLUTION
    plan = torch.zeros(len(unread)).long()
    for text in sorted(range(len(unread)), key=lambda i: int(unread[i])):
        plan[text] = min(int(unread[text]), budget)
        budget -= int(plan[text])
    return plan
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-short-first", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("short-first") as show:
    show(short_first(torch.tensor([9, 1, 5, 1]), 10), "the example")
    for budget in (show.random_size(14, 18), 100, 3):
        unread = torch.cat([show.randint(2, 12, 4), torch.ones(2).long(), show.randint(2, 12, 2)])
        show(short_first(unread, budget), f"8 texts, budget {budget}")
    show(short_first(torch.tensor([6, 6, 1, 6]), 9), "three equal prompts")
    show(short_first(torch.tensor([1, 1, 1, 4]), 2), "fewer tokens than texts that write")

# %% tags=["mistakes"]
def shared_out(order_of, part=True, again=False):
    """A plan in another order; without `part`, no prompt is cut."""
    def answer(unread, budget):
        plan = torch.zeros(len(unread)).long()
        for text in order_of(unread):
            new = min(int(unread[text]), budget) if part or int(unread[text]) <= budget else 0
            plan[text] = new
            budget -= 0 if again else new
        return plan
    return answer


def ascending(unread):
    return unread.argsort(stable=True).tolist()


mistake("short-first", shared_out(lambda unread: range(len(unread))), "That is the order in which they came. Writers come first, then short prompts.")
mistake("short-first", shared_out(lambda unread: sorted(range(len(unread)), key=lambda i: int(unread[i]) > 1)),
        "Texts that write come first: right. But then the *shortest* prompt, and not the one that came first.")
mistake("short-first", shared_out(lambda unread: unread.argsort(stable=True, descending=True).tolist()), "The longest comes first here.")
mistake("short-first", shared_out(ascending, part=False), "A prompt that doesn't fit may be read in part: that is the point of a budget.")
mistake("short-first", shared_out(ascending, again=True), "Each text gets the whole budget. What one has read is gone for the others.")
mistake("short-first", shared_out(lambda unread: sorted(range(len(unread)), key=lambda i: (int(unread[i]), -i))),
        "Among equals, the one with the smaller index comes first.")
mistake("short-first", lambda unread, budget: unread.clone(), "The budget is ignored.")


def by_sums(unread, budget):
    order = unread.argsort(stable=True)
    before = unread[order].cumsum(0) - unread[order]
    plan = torch.zeros_like(unread)
    plan[order] = torch.minimum(unread[order], (budget - before).clamp(min=0))
    return plan


alternative("short-first", by_sums)
equivalent("short-first", "torch.zeros(len(unread)) → torch.ones(len(unread))", "Each number is replaced.")

# %% [markdown]
# ### Task 4 · How many blocks?   ●●●○○ · 10 minutes · 3 points
#
# Given the tokens of several texts that are in memory at the same time. Return how many blocks of `size` slots they take
# *without* and *with* sharing. Texts share a **full** block if they have the same tokens in it and before it. A last block
# that isn't full belongs to one text alone, since this text will write into it.
#
# <details><summary>Hint 1: a name for a full block</summary>
#
# Here memory is no problem: the name may be *all* tokens up to the end of the block, `tuple(text[:end])`.
# </details>
# <details><summary>Hint 2: count names once</summary>
#
# A `set` keeps each only once.
# </details>

# %% nbgrader={"grade_id": "count-blocks", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def count_blocks(texts: list[list[int]], size: int) -> tuple[int, int]:
    """Blocks without sharing, and with it."""
    ### BEGIN SOLUTION
    alone, partly, names = 0, 0, set()
    for text in texts:
        alone += (len(text) + size - 1) // size
        partly += len(text) % size > 0
        names |= {tuple(text[:end]) for end in range(size, len(text) + 1, size)}
    return alone, partly + len(names)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-count-blocks", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("count-blocks") as show:
    first, second = show.randint(0, 9, 12).tolist(), show.randint(10, 19, 12).tolist()
    cases = {"one beginning, three ends": [first[:8] + second[i : i + 3] for i in range(3)],
             "the same text twice": [first[:10], first[:10], second[:5]],
             "equal blocks behind different ones": [first[:4] + first[4:8], second[:4] + first[4:8]],
             "one token differs, at the end of a block": [first[:8], first[:3] + second[:1] + first[4:8], first[:7] + second[:1]],
             "a text that repeats itself": [first[:4] * 3, first[:4]], "two full blocks": [first[:8], first[:8]]}
    for name, texts in cases.items():
        show([torch.tensor(count_blocks(texts, size)) for size in (4, 2, show.random_size(3, 5))], name)

# %% tags=["mistakes"]
def counted(names_of, partly=lambda text, size: len(text) % size > 0):
    """The answer with other names of blocks."""
    def answer(texts, size):
        names = set().union(*(names_of(text, size) for text in texts))
        return sum(-(-len(text) // size) for text in texts), len(names) + sum(partly(text, size) for text in texts)
    return answer


def full_names(text, size):
    return {tuple(text[:end]) for end in range(size, len(text) + 1, size)}


mistake("count-blocks", counted(lambda text, size: {tuple(text[end - size : end]) for end in range(size, len(text) + 1, size)}),
        "The same tokens behind a *different* beginning have other keys: the name must contain everything before.")
mistake("count-blocks", counted(lambda text, size: {(end, *text[end - size : end]) for end in range(size, len(text) + 1, size)}),
        "Tokens and position are not enough: keys depend on all tokens before.")
mistake("count-blocks", counted(full_names, lambda text, size: 1),
        "A text whose last block is full has no other block.")
mistake("count-blocks", counted(lambda text, size: set()), "Full blocks are missing from the second number.")
mistake("count-blocks", counted(full_names, lambda text, size: 0), "Last blocks that aren't full are missing.")
mistake("count-blocks", counted(lambda text, size: {tuple(text[: end + size]) for end in range(0, len(text), size)}, lambda text, size: 0),
        "A block that isn't full can't be shared, even if it is equal today: each text will write its own token into it.")
mistake("count-blocks", counted(lambda text, size: {tuple(text[:end]) for end in range(size, len(text), size)}),
        "A text that fills its last block exactly has one full block more.")
mistake("count-blocks", lambda texts, size: count_blocks(texts, size)[::-1], "The order is: without sharing first.")
mistake("count-blocks", lambda texts, size: (-(-sum(map(len, texts)) // size), count_blocks(texts, size)[1]),
        "Without sharing, each text takes its own blocks: round up for each.")
mistake("count-blocks", lambda texts, size: (count_blocks(texts, size)[0],) * 2, "Nothing is shared here.")


def by_pairs(texts, size):
    alone = shared = 0
    for number, text in enumerate(texts):
        for start in range(0, len(text), size):
            end = start + size
            before = any(len(other) >= end and other[:end] == text[:end] for other in texts[:number])
            alone, shared = alone + 1, shared + (end <= len(text) and before)
    return alone, alone - shared


alternative("count-blocks", by_pairs)

# %% [markdown]
# ### Task 5 · Two answers to one prompt   ●●●●○ · 15 minutes · 3 points
#
# A user wants two different answers to one prompt. Both texts have *all* blocks of the prompt in their tables, also the last
# one, which isn't full. As long as they only read, that is fine. But then each writes its own token. The rule is **copy on
# write**: before a text writes into a block that others hold as well, it takes a free one, copies the old content, and
# puts the new one into its table. (Kwon et al. 2023, section 4.4.)
#
# A text with the blocks `table` has `length` tokens in memory and will write one more. `references` says how many tables hold
# each block; a free block has 0. When it needs one, it takes the **free block with the smallest number**. Return
#
# - the slot of the new token, `block * size + place`;
# - the new table, and the new references;
# - the number of the block that must be copied, or −1 if none. (A block that begins empty is not a copy.)
#
# Don't change the tensors that you are given: the other text has them as well.
#
# <details><summary>Hint 1: three cases</summary>
#
# `length % size == 0`: all its blocks are full, so it takes a free one. Otherwise the last block has room: is it this text's
# alone (1 reference) or not?
# </details>
# <details><summary>Hint 2: after a copy</summary>
#
# The old block has one reference less, the new one has one.
# </details>

# %% nbgrader={"grade_id": "copy-on-write", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def write_one(
    table: Int[Tensor, "held"], references: Int[Tensor, "blocks"], length: int, size: int
) -> tuple[int, Int[Tensor, "_"], Int[Tensor, "blocks"], int]:
    """(slot, table, references, block to copy or −1) when a text writes one token more."""
    ### BEGIN SOLUTION
    table, references, copied = table.clone(), references.clone(), -1
    free = int((references == 0).nonzero()[0])
    if length % size == 0:
        table = torch.cat([table, torch.tensor([free])])
        references[free] = 1
    elif references[table[-1]] > 1:
        copied = int(table[-1])
        references[copied] -= 1
        references[free] = 1
        table[-1] = free
    return int(table[-1]) * size + length % size, table, references, copied
    ### END SOLUTION

# %%
def results(answer: tuple[int, Tensor, Tensor, int]) -> list[Tensor]:
    """The four parts as tensors."""
    slot, table, references, copied = answer
    return [torch.tensor(slot), table, references, torch.tensor(copied)]

# %% nbgrader={"grade_id": "check-copy-on-write", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("copy-on-write") as show:
    for size, more in ((4, 1), (4, 3), (3, 0), (5, show.random_size(1, 4))):
        for holders in (1, 2, 3):
            order = show.permutation(8)
            table, references = order[:3].clone(), torch.zeros(8).long()
            references[order[:2]], references[order[2]], references[order[3:5]] = 1 + holders % 2, holders, 1
            length = (2 if more else 3) * size + more
            show(results(write_one(table, references, length, size)), f"{length} tokens, blocks of {size}, {holders} holding them")
            show([table, references], "what was given is as it was")

# %% tags=["mistakes"]
def wrote(free_of=lambda references: int((references == 0).nonzero()[0]), full=lambda length, size: length % size == 0,
          limit=1, old=-1, new=1, copies=True, place=lambda length, size: length % size, clone=True, reported=lambda b: b):
    """The answer with something changed."""
    def answer(table, references, length, size):
        if clone:
            table, references = table.clone(), references.clone()
        copied, free = -1, free_of(references)
        if full(length, size):
            table = torch.cat([table, torch.tensor([free])])
            references[free] = 1
        elif references[table[-1]] > limit and copies:
            copied = int(table[-1])
            references[copied] += old
            references[free] = new
            table[-1] = free
        return int(table[-1]) * size + place(length, size), table, references, reported(copied)
    return answer


mistake("copy-on-write", wrote(copies=False), "The text writes into a block that another one holds: both would see its token. Copy first.")
mistake("copy-on-write", wrote(limit=0), "A block that this text alone holds may be written to: nothing is copied.")
mistake("copy-on-write", wrote(limit=2), "If *two* tables hold a block, one of them is another text's.")
mistake("copy-on-write", wrote(old=0), "The old block is in one table less: its count goes down.")
mistake("copy-on-write", wrote(new=0), "The new block is in a table now: its count is 1.")
mistake("copy-on-write", wrote(clone=False), "You change the tensors that you are given. Work on a `clone()`.")
mistake("copy-on-write", wrote(place=lambda length, size: (length - 1) % size), "That is the slot of the last token that is there. The new one comes after it.")
mistake("copy-on-write", wrote(place=lambda length, size: 0), "The new token's place in its block is missing: `length % size`.")
mistake("copy-on-write", wrote(free_of=lambda references: int((references != 0).nonzero()[0])), "A block is free if its count is 0.")
mistake("copy-on-write", lambda table, references, length, size: (int(write_one(table, references, length, size)[1][-1]),
        *write_one(table, references, length, size)[1:]), "That is the block. A slot is `block * size + place`.")
mistake("copy-on-write", wrote(free_of=lambda references: int((references == 0).nonzero()[-1])), "Take the free block with the *smallest* number.")
mistake("copy-on-write", wrote(full=lambda length, size: (length + 1) % size == 0),
        "A further block is needed when `length` slots are full, that is, when `length` is a multiple of `size`.")
mistake("copy-on-write", wrote(reported=lambda block: -1), "Say which block must be copied: its number, if there is one.")


def in_three_cases(table, references, length, size):
    new, counts = table.tolist(), references.tolist()
    free, last, place = counts.index(0), new[-1], length % size
    if place and counts[last] == 1:
        return last * size + place, table.clone(), references.clone(), -1
    if place:
        new.pop()
        counts[last] -= 1
    counts[free] = 1
    return free * size + place, torch.tensor([*new, free]), torch.tensor(counts), last if place else -1


alternative("copy-on-write", in_three_cases)
