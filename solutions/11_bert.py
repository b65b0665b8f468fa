# %% [markdown]
# # Exercise 11 · BERT
#
# Five tasks, 14 points, about 55 minutes. They belong to lesson [11 BERT](../notebooks/11_bert.ipynb). Run the cells from
# the top; fill in where it says *your turn*, then run the check below it. You may check as often as you like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0
mode = "learn"

# %%
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from txlib.grading import check

# %% [markdown]
# ### Task 1 · The corruption   ●●○○○ · 10 minutes · 3 points
#
# Build the input and the labels of masked language modelling. All that is random comes in from outside, so that the
# result is certain:
#
# - a token is *chosen* where `pick` is below 0.15, unless it is special;
# - where a token is chosen, `dice` decides: below 0.8 it becomes `mask_id`; from 0.8 to below 0.9 it becomes the token of
#   `other`; from 0.9 on it stays;
# - the label of a chosen token is the token itself, everywhere else it is −100.
#
# `ids` itself must not change.
#
# <details><summary>Hint 1: what is chosen?</summary>
#
# `chosen = (pick < 0.15) & ~special`. Both the input and the labels start from it. (The brackets are needed: `&` binds
# more tightly than `<`.)
# </details>
# <details><summary>Hint 2: how to replace without changing ids?</summary>
#
# `masked_fill` and `torch.where` make new tensors. `ids[...] = ...` would change the one you were given.
# </details>
# <details><summary>Hint 3: which labels?</summary>
#
# The tokens of the *original* text, for all three kinds of chosen ones: also for those that stay.
# </details>

# %% nbgrader={"grade_id": "corrupt", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def corrupt(
    ids: Int[Tensor, "batch n"],
    special: Bool[Tensor, "batch n"],
    pick: Float[Tensor, "batch n"],
    dice: Float[Tensor, "batch n"],
    other: Int[Tensor, "batch n"],
    mask_id: int,
) -> tuple[Int[Tensor, "batch n"], Int[Tensor, "batch n"]]:
    """What the model sees, and the labels."""
    ### BEGIN SOLUTION
    chosen = (pick < 0.15) & ~special
    labels = ids.masked_fill(~chosen, -100)
    seen = ids.masked_fill(chosen & (dice < 0.8), mask_id)
    seen = torch.where(chosen & (dice >= 0.8) & (dice < 0.9), other, seen)
    return seen, labels
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-corrupt", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("corrupt") as show:
    n = show.random_size(90, 110)
    ids, other = show.randint(10, 1000, 6, n), show.randint(10, 1000, 6, n)
    special, pick, dice = show.rand(6, n) < 0.2, 0.5 * show.rand(6, n), show.rand(6, n)
    seen, labels = corrupt(ids, special, pick, dice, other, 7)
    show(seen, f"six texts of {n} tokens: what the model sees")
    show(labels, "and the labels")
    show(ids, "ids, afterwards")

# %% tags=["mistakes"]
from txlib.grading import alternative, forbid, mistake

forbid("*", "txlib")


def corrupted(chosen, masked, replaced, labelled=None):
    """A corruption with other rules; each takes (chosen or special, pick, dice)."""
    def answer(ids, special, pick, dice, other, mask_id):
        where = chosen(special, pick, dice)
        seen = ids.masked_fill(where & masked(dice), mask_id)
        seen = torch.where(where & replaced(dice), other, seen)
        return seen, ids.masked_fill(~(where if labelled is None else labelled(where, dice)), -100)
    return answer


def ordinary(special, pick, dice):
    return (pick < 0.15) & ~special


def low(dice):
    return dice < 0.8


def between(dice):
    return (dice >= 0.8) & (dice < 0.9)


def in_place(ids, special, pick, dice, other, mask_id):
    seen, labels = corrupt(ids, special, pick, dice, other, mask_id)
    ids.copy_(seen)
    return ids, labels


def everywhere(ids, special, pick, dice, other, mask_id):
    seen = torch.where(between(dice), other, ids.masked_fill(low(dice), mask_id))
    return seen, corrupt(ids, special, pick, dice, other, mask_id)[1]


def labels_of_seen(ids, special, pick, dice, other, mask_id):
    seen, labels = corrupt(ids, special, pick, dice, other, mask_id)
    return seen, torch.where(labels == -100, labels, seen)


def all_labels(ids, special, pick, dice, other, mask_id):
    return corrupt(ids, special, pick, dice, other, mask_id)[0], ids.clone()


def zeros_elsewhere(ids, special, pick, dice, other, mask_id):
    seen, labels = corrupt(ids, special, pick, dice, other, mask_id)
    return seen, labels.masked_fill(labels == -100, 0)


mistake("corrupt", corrupted(lambda special, pick, dice: pick < 0.15, low, between),
        "Special tokens are corrupted, too. `[CLS]`, `[SEP]` and padding are never chosen: `& ~special`.")
mistake("corrupt", corrupted(ordinary, low, between, lambda chosen, dice: chosen & low(dice)),
        "Only the masked tokens have labels. The model is asked for *all* chosen ones, also where it sees a random token "
        "or the right one.")
mistake("corrupt", corrupted(ordinary, low, between, lambda chosen, dice: chosen & (dice < 0.9)),
        "The tokens that stay have no label. They are chosen, so they count: that they look untouched is the point.")
mistake("corrupt", corrupted(ordinary, lambda dice: dice < 2, lambda dice: dice > 2),
        "Every chosen token is masked. Only those with `dice` below 0.8 are.")
mistake("corrupt", corrupted(ordinary, low, lambda dice: dice >= 0.8),
        "All chosen tokens that are not masked become random. From 0.9 on they stay what they are.")
mistake("corrupt", corrupted(ordinary, low, lambda dice: dice >= 0.9),
        "Random and kept are exchanged: from 0.8 to below 0.9 a token becomes `other`, from 0.9 on it stays.")
mistake("corrupt", labels_of_seen,
        "The labels are taken from the corrupted text. Then the right answer to `[MASK]` is `[MASK]`. Take them from `ids`.")
mistake("corrupt", all_labels,
        "Every token has a label. Then 85 % of the task is copying what stands there. Where nothing is chosen, it is −100.")
mistake("corrupt", zeros_elsewhere,
        "The label of what is not chosen is 0. That is a token. −100 is what cross-entropy leaves out.")
mistake("corrupt", corrupted(ordinary, low, lambda dice: dice < 0.9),
        "Where `dice` is below 0.8, the mask is overwritten by `other`. Random are those from 0.8 to below 0.9 only.")
mistake("corrupt", everywhere,
        "Tokens that are not chosen are replaced, too. `dice` decides about chosen ones only: `chosen & (dice < 0.8)`.")
mistake("corrupt", in_place,
        "`ids` has changed. Whoever called you still needs the text: make a new tensor, with `clone()`, `masked_fill` or "
        "`torch.where`.")


def by_index(ids, special, pick, dice, other, mask_id):
    seen, labels = ids.clone(), torch.full_like(ids, -100)
    chosen = (pick < 0.15) & ~special
    labels[chosen] = ids[chosen]
    seen[chosen & (dice < 0.8)] = mask_id
    replaced = chosen & (dice >= 0.8) & (dice < 0.9)
    seen[replaced] = other[replaced]
    return seen, labels


alternative("corrupt", by_index)

# %% [markdown]
# ### Task 2 · Two sentences, one row   ●●○○○ · 10 minutes · 3 points
#
# Build `[CLS] a [SEP] b [SEP]` and its segments: 0 up to and with the first `[SEP]`, 1 behind it. The row must not have
# more than `max_length` tokens. Where it would, take tokens away from the *end of the longer* of the two sentences, one
# after the other, until it fits; where both are equally long, from `b`. Without `b` (`None`) the row is `[CLS] a [SEP]`.
#
# `a` and `b` must not change.
#
# <details><summary>Hint 1: how much room is there?</summary>
#
# Three special tokens with two sentences, two with one. The rest is for `a` and `b` together.
# </details>
# <details><summary>Hint 2: one after the other?</summary>
#
# `while len(a) + len(b) > room:` and one `pop()` inside, on a copy: `a = list(a)`.
# </details>
# <details><summary>Hint 3: the segments</summary>
#
# `[0] * (len(a) + 2) + [1] * (len(b) + 1)`: the last `[SEP]` belongs to `b`.
# </details>

# %% nbgrader={"grade_id": "join-pair", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def join_pair(
    a: list[int], b: list[int] | None, cls_id: int, sep_id: int, max_length: int
) -> tuple[list[int], list[int]]:
    """The tokens of the row, and the segment of each."""
    ### BEGIN SOLUTION
    if b is None:
        a = a[: max_length - 2]
        return [cls_id, *a, sep_id], [0] * (len(a) + 2)
    a, b = list(a), list(b)
    while len(a) + len(b) > max_length - 3:
        (a if len(a) > len(b) else b).pop()
    return [cls_id, *a, sep_id, *b, sep_id], [0] * (len(a) + 2) + [1] * (len(b) + 1)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-join-pair", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("join-pair") as show:
    n = show.random_size(8, 12)
    a, b = show.randint(10, 99, n).tolist(), show.randint(10, 99, 3).tolist()
    show(join_pair(a, b, 1, 2, 64), f"{n} and 3 tokens, room for all")
    show(join_pair(a, b, 1, 2, n + 3), f"{n} and 3 tokens, max_length {n + 3}")
    show(join_pair(b, a, 1, 2, 7), f"3 and {n} tokens, max_length 7")
    show(join_pair(a, a[::-1], 1, 2, 2 * n), f"{n} and {n} tokens, max_length {2 * n}")
    show(join_pair(a, None, 1, 2, 6), f"{n} tokens alone, max_length 6")
    show((a, b), "a and b, afterwards")

# %% tags=["mistakes"]
def joined(cut, segments=None):
    """Rows where `cut(a, b, room)` shortens, and `segments(a, b)` gives the segments of a pair."""
    def answer(a, b, cls_id, sep_id, max_length):
        if b is None:
            return join_pair(a, b, cls_id, sep_id, max_length)
        a, b = cut(list(a), list(b), max_length - 3)
        kinds = segments(a, b) if segments else [0] * (len(a) + 2) + [1] * (len(b) + 1)
        return [cls_id, *a, sep_id, *b, sep_id], kinds
    return answer


def fairly(a, b, room):
    while len(a) + len(b) > room:
        (a if len(a) > len(b) else b).pop()
    return a, b


def from_b(a, b, room):
    return a[:room], b[: max(0, room - len(a))]


def from_a_at_ties(a, b, room):
    while len(a) + len(b) > room:
        (a if len(a) >= len(b) else b).pop()
    return a, b


def from_the_front(a, b, room):
    while len(a) + len(b) > room:
        (a if len(a) > len(b) else b).pop(0)
    return a, b


def halves(a, b, room):
    return (a, b) if len(a) + len(b) <= room else (a[: room - room // 2], b[: room // 2])


def cut_at_the_end(a, b, cls_id, sep_id, max_length):
    tokens, segments = join_pair(a, b, cls_id, sep_id, 10**6)
    return tokens[:max_length], segments[:max_length]


def changing(a, b, cls_id, sep_id, max_length):
    answer = join_pair(a, b, cls_id, sep_id, max_length)
    if b is not None:
        while len(a) + len(b) > max_length - 3:
            (a if len(a) > len(b) else b).pop()
    return answer


def sep_alone(a, b, cls_id, sep_id, max_length):
    tokens, segments = join_pair(a, [] if b is None else b, cls_id, sep_id, max_length)
    return tokens, segments


def three_alone(a, b, cls_id, sep_id, max_length):
    return join_pair(a, b, cls_id, sep_id, max_length - (b is None))


def uncut_alone(a, b, cls_id, sep_id, max_length):
    return join_pair(a, b, cls_id, sep_id, 10**6 if b is None else max_length)


mistake("join-pair", joined(lambda a, b, room: fairly(a, b, room + 3)),
        "The special tokens have no room: the row is longer than `max_length`. Two sentences share `max_length - 3`.")
mistake("join-pair", cut_at_the_end,
        "The whole row is cut at its end. Then the last `[SEP]` is lost, and perhaps all of `b`. Shorten the sentences "
        "before you join them.")
mistake("join-pair", joined(from_b), "Only `b` is shortened. Take from the *longer* of the two, each time anew.")
mistake("join-pair", joined(halves),
        "Each sentence gets half of the room. A short one then leaves room unused that the long one needs. Take tokens "
        "away one by one from the longer.")
mistake("join-pair", joined(from_a_at_ties), "Where both are equally long, the token goes from `b`.")
mistake("join-pair", joined(from_the_front), "Tokens are taken from the front. Take them from the *end* of a sentence.")
mistake("join-pair", joined(fairly, lambda a, b: [0] * (len(a) + 1) + [1] * (len(b) + 2)),
        "The first `[SEP]` has segment 1. It closes `a`, so it belongs to segment 0.")
mistake("join-pair", joined(fairly, lambda a, b: [0] * (len(a) + 2) + [1] * len(b) + [0]),
        "The last `[SEP]` has segment 0. It closes `b`, so it belongs to segment 1.")
mistake("join-pair", joined(fairly, lambda a, b: [0] * (len(a) + len(b) + 3)),
        "Every token has segment 0. Behind the first `[SEP]` it is 1.")
mistake("join-pair", sep_alone,
        "A single sentence has two `[SEP]`. Where `b` is `None`, the row is `[CLS] a [SEP]`.")
mistake("join-pair", three_alone,
        "A single sentence is cut one token too short. Its row has two special tokens, not three: `max_length - 2`.")
mistake("join-pair", uncut_alone,
        "A single sentence is not shortened. It gets `max_length - 2` tokens.")
mistake("join-pair", changing,
        "`a` or `b` has changed: `pop()` works on the list that you were given. Make a copy first: `a, b = list(a), list(b)`.")


def by_lengths(a, b, cls_id, sep_id, max_length):
    if b is None:
        row = [cls_id, *a[: max_length - 2], sep_id]
        return row, [0] * len(row)
    room, m, n = max_length - 3, len(a), len(b)
    while m + n > room:
        m, n = (m - 1, n) if m > n else (m, n - 1)
    first, second = [cls_id, *a[:m], sep_id], [*b[:n], sep_id]
    return first + second, [0] * len(first) + [1] * len(second)


alternative("join-pair", by_lengths)

# %% [markdown]
# ### Task 3 · Labels for word pieces   ●●○○○ · 10 minutes · 2 points
#
# A tagger has a tag for each *word*, but reads *pieces*. Give the labels of the row `[CLS] pieces [SEP]`: the first piece
# of a word has the word's tag; its further pieces, `[CLS]` and `[SEP]` have −100. If the row would be longer than
# `max_length`, cut the pieces, so that `[SEP]` still fits.
#
# <details><summary>Hint 1: one word</summary>
#
# `[tag] + [-100] * (count - 1)`, with `count` pieces.
# </details>
# <details><summary>Hint 2: many words</summary>
#
# Go through tags and counts together with `zip`, and append to one list.
# </details>
# <details><summary>Hint 3: too long?</summary>
#
# At most `max_length - 2` labels of pieces. A word may lose some of its pieces.
# </details>

# %% nbgrader={"grade_id": "label-pieces", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def label_pieces(tags: list[int], counts: list[int], max_length: int) -> list[int]:
    """The label of each token of the row; word i has the tag tags[i] and consists of counts[i] pieces."""
    ### BEGIN SOLUTION
    labels = []
    for tag, count in zip(tags, counts, strict=True):
        labels += [tag] + [-100] * (count - 1)
    return [-100, *labels[: max_length - 2], -100]
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-label-pieces", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("label-pieces") as show:
    n = show.random_size(6, 9)
    tags, counts = show.randint(0, 4, n).tolist(), [3, 1, 4, *show.randint(1, 4, n - 3).tolist()]
    show(label_pieces(tags, counts, 64), f"{n} words")
    for max_length in (6, 8):
        show(label_pieces(tags, counts, max_length), f"{n} words, max_length {max_length}")
    show(label_pieces(tags, [1] * n, n + 2), f"{n} words of one piece, max_length {n + 2}")

# %% tags=["mistakes"]
def labelled(word, front=-100, behind=-100):
    """Labels where `word(tag, count)` gives those of one word."""
    def answer(tags, counts, max_length):
        labels = [label for tag, count in zip(tags, counts) for label in word(tag, count)]
        return [front, *labels[: max_length - 2], behind]
    return answer


def first_only(tag, count):
    return [tag] + [-100] * (count - 1)


def without_marks(tags, counts, max_length):
    return label_pieces(tags, counts, max_length + 2)[1:-1]


def sep_cut_off(tags, counts, max_length):
    return label_pieces(tags, counts, 10**6)[:max_length]


def whole_words(tags, counts, max_length):
    labels = []
    for tag, count in zip(tags, counts):
        if len(labels) + count > max_length - 2:
            break
        labels += first_only(tag, count)
    return [-100, *labels, -100]


mistake("label-pieces", labelled(lambda tag, count: [tag] * count),
        "Every piece has the word's tag. Then long words count more than short ones. Only the *first* piece speaks for "
        "its word.")
mistake("label-pieces", labelled(lambda tag, count: [-100] * (count - 1) + [tag]),
        "The *last* piece has the tag. It is the first one.")
mistake("label-pieces", labelled(lambda tag, count: [tag] + [0] * (count - 1)),
        "Further pieces have the label 0. That is a tag, and the loss would count it. −100 is what it leaves out.")
mistake("label-pieces", labelled(first_only, 0, 0),
        "`[CLS]` and `[SEP]` have the label 0. They are no words: −100.")
mistake("label-pieces", labelled(lambda tag, count: [tag] + [-100] * count),
        "Each word has one label too many. The first of its `count` pieces has the tag: `count - 1` are left.")
mistake("label-pieces", lambda tags, counts, max_length: label_pieces(tags, counts, max_length)[:-1],
        "The label of `[SEP]` is missing. It is −100, at the end of every row.")
mistake("label-pieces", without_marks,
        "`[CLS]` and `[SEP]` have no label at all. Then every label stands one place too far left.")
mistake("label-pieces", sep_cut_off,
        "Cut at `max_length`, the last label belongs to a piece, but the row ends with `[SEP]`. Leave room for it.")
mistake("label-pieces", lambda tags, counts, max_length: label_pieces(tags, counts, 10**6),
        "The row is longer than `max_length`. Cut the pieces' labels at `max_length - 2`.")
mistake("label-pieces", whole_words,
        "A word that does not fit whole is left out. Its first pieces are in the row, so their labels must be, too.")
alternative("label-pieces", lambda tags, counts, max_length: [
    -100, *[tag if i == 0 else -100 for tag, count in zip(tags, counts) for i in range(count)][: max_length - 2], -100])

# %% [markdown]
# ### Task 4 · The best span   ●●●○○ · 12 minutes · 3 points
#
# A span head gives each token a score to be the answer's first and a score to be its last. Return the pair
# `(first, last)` with the highest sum of both scores, such that
#
# - first ≤ last;
# - the span has at most `longest` tokens;
# - both ends are tokens of the context, where `context` is True, not of the question.
#
# In every check the best pair is unique. Return two ints.
#
# <details><summary>Hint 1: all pairs at once</summary>
#
# `start[:, None] + end[None, :]` is a table: row first, column last.
# </details>
# <details><summary>Hint 2: which pairs may be?</summary>
#
# `last - first` must be at least 0 and at most `longest - 1`. Give all others the score −∞.
# </details>
# <details><summary>Hint 3: where is the maximum?</summary>
#
# `int(table.argmax())` counts through the whole table, row after row. `divmod(index, n)` gives row and column.
# </details>

# %% nbgrader={"grade_id": "best-span", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def best_span(
    start: Float[Tensor, "n"], end: Float[Tensor, "n"], context: Bool[Tensor, "n"], longest: int
) -> tuple[int, int]:
    """The first and the last token of the best span."""
    ### BEGIN SOLUTION
    n = len(start)
    score = start[:, None] + end[None, :]                          # (first, last)
    length = torch.arange(n)[None, :] - torch.arange(n)[:, None] + 1             # (first, last)
    allowed = (length >= 1) & (length <= longest) & context[:, None] & context[None, :]
    return divmod(int(score.masked_fill(~allowed, float("-inf")).argmax()), n)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-best-span", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("best-span") as show:
    for longest in (1, 3, 5):
        found = []
        for _ in range(12):
            n = show.random_size(14, 20)
            context = torch.arange(n) >= 5
            found.append(best_span(3 * show.randn(n), 3 * show.randn(n), context, longest))
        show(found, f"twelve texts, at most {longest} tokens")

# %% tags=["mistakes"]
def searched(allowed):
    """A search where `allowed(length, first in context, last in context, longest)` says which pairs may be."""
    def answer(start, end, context, longest):
        n = len(start)
        length = torch.arange(n)[None, :] - torch.arange(n)[:, None] + 1
        may = allowed(length, context[:, None], context[None, :], longest)
        return divmod(int((start[:, None] + end[None, :]).masked_fill(~may, float("-inf")).argmax()), n)
    return answer


def each_alone(start, end, context, longest):
    return int(start.masked_fill(~context, -1e9).argmax()), int(end.masked_fill(~context, -1e9).argmax())


def start_first(start, end, context, longest):
    first = int(start.masked_fill(~context, -1e9).argmax())
    return first, first + int(end[first : first + longest].argmax())


def zero_instead(start, end, context, longest):
    n = len(start)
    length = torch.arange(n)[None, :] - torch.arange(n)[:, None] + 1
    may = (length >= 1) & (length <= longest) & context[:, None] & context[None, :]
    return divmod(int(((start - 4)[:, None] + (end - 4)[None, :]).masked_fill(~may, 0.0).argmax()), n)


def multiplied(start, end, context, longest):
    n = len(start)
    length = torch.arange(n)[None, :] - torch.arange(n)[:, None] + 1
    may = (length >= 1) & (length <= longest) & context[:, None] & context[None, :]
    return divmod(int((start[:, None] * end[None, :]).masked_fill(~may, float("-inf")).argmax()), n)


mistake("best-span", each_alone,
        "Start and end are chosen each for itself. Then the end can stand before the start. Search over *pairs*.")
mistake("best-span", start_first,
        "You fix the best start, and then look for the best end. A slightly worse start may have a far better end: "
        "compare the *sums* of all pairs.")
mistake("best-span", searched(lambda length, first, last, longest: (length.abs() <= longest) & first & last),
        "Ends before starts are allowed. A span needs first ≤ last.")
mistake("best-span", searched(lambda length, first, last, longest: (length >= 1) & first & last),
        "There is no limit to the length. At most `longest` tokens: `last - first + 1 <= longest`.")
mistake("best-span", searched(lambda length, first, last, longest: (length >= 1) & (length <= longest + 1) & first & last),
        "One token too long: from first to last there are `last - first + 1` tokens.")
mistake("best-span", searched(lambda length, first, last, longest: (length > 1) & (length <= longest + 1) & first & last),
        "Spans of a single token are missing, and the limit is one too far. first = last is a span, of one token.")
mistake("best-span", searched(lambda length, first, last, longest: (length >= 1) & (length <= longest)),
        "The answer may stand in the question. Both ends must be where `context` is True.")
mistake("best-span", searched(lambda length, first, last, longest: (length <= 1) & (length > 1 - longest) & first & last),
        "Your spans run backwards: the last token stands before the first. In the table the row is first, the column last.")
mistake("best-span", multiplied,
        "The scores are multiplied. They are logits: two negative ones would make a large product. Add them.")
mistake("best-span", zero_instead,
        "Forbidden pairs get the score 0. Scores may be negative, and then 0 wins. Use −∞.")


def by_loops(start, end, context, longest):
    places = [(first, last) for first in range(len(start)) for last in range(first, min(len(start), first + longest))
              if context[first] and context[last]]
    return max(places, key=lambda place: (start[place[0]] + end[place[1]]).item())


alternative("best-span", by_loops)

# %% [markdown]
# ### Task 5 · Find the offset heads   ●●●●○ · 13 minutes · 3 points
#
# A head with offset $-1$ looks at the token before, one with $+1$ at the token behind. Given the weights of several heads
# on one text, find each head's strongest offset, key minus query, among $-3 \dots 3$: the one with the largest *mean*
# weight over all queries *that have such a key*. The first token has none before it, and must not count for $-1$.
#
# Return the offsets (int64) and their mean weights.
#
# <details><summary>Hint 1: where do these weights stand?</summary>
#
# On a diagonal: `weight.diagonal(offset, dim1=-2, dim2=-1)` has the entries with key − query = offset, n − |offset| of
# them.
# </details>
# <details><summary>Hint 2: all offsets</summary>
#
# Take the mean of each of the seven diagonals, and stack them: (heads, 7).
# </details>
# <details><summary>Hint 3: which one?</summary>
#
# `max(dim=-1)` gives the largest mean and its place, 0 to 6. The offset is that place minus 3.
# </details>

# %% nbgrader={"grade_id": "find-offset", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def find_offset(weight: Float[Tensor, "heads n n"]) -> tuple[Int[Tensor, "heads"], Float[Tensor, "heads"]]:
    """Each head's strongest offset among -3 … 3, and its mean weight. n is at least 4."""
    ### BEGIN SOLUTION
    means = [weight.diagonal(offset, dim1=-2, dim2=-1).mean(dim=-1) for offset in range(-3, 4)]
    strength, place = torch.stack(means, dim=-1).max(dim=-1)       # (heads,) each
    return place - 3, strength
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-find-offset", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("find-offset") as show:
    n = show.random_size(7, 10)
    query, key = torch.arange(n)[:, None], torch.arange(n)[None, :]
    clear = torch.stack([3.0 * (key - query == offset) for offset in (-3, -1, 0, 2, 3)])
    show(find_offset((clear + 0.3 * show.randn(5, n, n)).softmax(dim=-1)), f"five heads with a clear offset, n = {n}")
    show(find_offset((1.5 * show.randn(12, n, n)).softmax(dim=-1)), f"twelve untrained heads, n = {n}")
    show(find_offset((2 * show.randn(6, 4, 4)).softmax(dim=-1)), "six untrained heads, n = 4")

# %% tags=["mistakes"]
def offsets(mean, low=-3, high=3, turn=1):
    """A search where `mean(weight, offset)` gives the strength of an offset."""
    def answer(weight):
        strength, place = torch.stack([mean(weight, offset) for offset in range(low, high + 1)], dim=-1).max(dim=-1)
        return turn * (place + low), strength
    return answer


def along(weight, offset):
    return weight.diagonal(offset, dim1=-2, dim2=-1)


def not_itself(weight):
    means = torch.stack([along(weight, offset).mean(dim=-1) for offset in range(-3, 4)], dim=-1)
    means[:, 3] = float("-inf")
    strength, place = means.max(dim=-1)
    return place - 3, strength


def of_winners(weight):
    n = weight.shape[-1]
    offset = (weight.argmax(dim=-1) - torch.arange(n)).clamp(-3, 3).mode(dim=-1).values
    return offset, torch.stack([along(w, int(o)).mean() for w, o in zip(weight, offset)])


mistake("find-offset", offsets(lambda weight, offset: along(weight, offset).sum(dim=-1) / weight.shape[-1]),
        "You divide by n. The diagonal of offset o has n − |o| entries: queries without such a key must not count.")
mistake("find-offset", offsets(lambda weight, offset: along(weight, offset).sum(dim=-1)),
        "You compare sums. Long diagonals then win by their length; take means.")
mistake("find-offset", offsets(lambda weight, offset: along(weight.transpose(-2, -1), offset).mean(dim=-1)),
        "The sign is the wrong way round. The offset is key minus query: looking at the token before is −1.")
mistake("find-offset", offsets(lambda weight, offset: along(weight, offset).amax(dim=-1)),
        "You take the largest single weight of each diagonal. One lucky token is no habit: take the mean.")
mistake("find-offset", offsets(lambda weight, offset: along(weight, offset).mean(dim=-1), low=0),
        "Offsets to the left are missing. Search −3 to 3.")
mistake("find-offset", offsets(lambda weight, offset: along(weight, offset).mean(dim=-1), high=0),
        "Offsets to the right are missing. In BERT a head can look ahead: search −3 to 3.")
mistake("find-offset", offsets(lambda weight, offset: along(weight, offset).mean(dim=-1), high=2),
        "Offset 3 is missing. `range(-3, 3)` ends at 2: write `range(-3, 4)`.")
mistake("find-offset", not_itself, "Offset 0 is missing: a head may look at the token itself.")
mistake("find-offset", lambda weight: (find_offset(weight)[0] + 3, find_offset(weight)[1]),
        "This is the place in the list, 0 to 6. Subtract 3 to get the offset.")
mistake("find-offset", of_winners,
        "You count where the largest weight of each query stands. Asked for is the largest *mean weight*: a head can put "
        "40 % on the token before every time, and never the most.")
mistake("find-offset", offsets(lambda weight, offset: torch.stack([
            weight[:, q, (q + offset) % weight.shape[-1]] for q in range(weight.shape[-1])]).mean(dim=0)),
        "Your places wrap around: for offset −1 the first query looks at the *last* token. Queries without such a key must "
        "not count.")


def by_distance(weight):
    n = weight.shape[-1]
    distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]
    means = torch.stack([weight[:, distance == offset].mean(dim=-1) for offset in range(-3, 4)], dim=-1)
    return means.argmax(dim=-1) - 3, means.amax(dim=-1)


alternative("find-offset", by_distance)

# %%
check.summary()
