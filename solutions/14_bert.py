# %% [markdown]
# # Exercise 14 · BERT
#
# Five tasks, 16 points, about 75 minutes. [Lesson 14](../notebooks/14_bert.ipynb) has the ideas; here you apply them to
# new problems. Tasks 1, 2 and 4 are the *core*, about 35 minutes; tasks 3 and 5 are *more*. Run the cells from the top; fill
# in where it says *your turn*, then run the check below it. You may check as often as you like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0

# %%
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from txgrade import check, cost

# %% tags=["variant"]
from txgrade import variant

# Of task 1: which words are chosen, and which dice mask a piece, or replace it.
CHOSEN, MASKED, RANDOM = variant((0.15, 0.8, 0.9), (0.2, 0.7, 0.85), (0.25, 0.6, 0.8), (0.3, 0.7, 0.9))

# %% [markdown]
# ### Task 1 · Hide whole words   ●●●○○ · 12 minutes · 3 points
#
# Hide the `ulet` of `Cap · ulet`, and the rest gives it away. Later versions of BERT therefore choose *words*: all pieces
# of a word are chosen, or none. What a chosen piece becomes is decided for each piece separately, as in the lesson. All
# random numbers are arguments, so there is one right result:
#
# - `word` says which word each token belongs to: 0, 1, 2 …, or −1 for special tokens, which are never chosen;
# - word `w` is chosen if `pick[w]` is below {{CHOSEN}};
# - for a chosen token, its entry in `dice` decides: below {{MASKED}} it becomes `mask_id`; from {{MASKED}} to below {{RANDOM}}
#   it becomes the token at the same position in `other`; from {{RANDOM}} on it stays the same;
# - the label of a chosen token is the original token; everywhere else the label is −100.
#
# Return what the model sees, and the labels. `ids` itself must not change.
#
# <details><summary>Hint 1: from words to tokens?</summary>
#
# Indexing copies a word's number to each of its tokens: `pick[word]` has one number per token. But an index of −1 means the
# *last* word, so special tokens have to be excluded separately.
# </details>
# <details><summary>Hint 2: how to replace without changing ids?</summary>
#
# `masked_fill` and `torch.where` make new tensors. `ids[...] = ...` would change the one you were given.
# </details>
# <details><summary>Hint 3: which labels?</summary>
#
# Those of all pieces of a chosen word, including the pieces that stay the same.
# </details>

# %% nbgrader={"grade_id": "hide-words", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def hide_words(
    ids: Int[Tensor, "n"],
    word: Int[Tensor, "n"],
    pick: Float[Tensor, "words"],
    dice: Float[Tensor, "n"],
    other: Int[Tensor, "n"],
    mask_id: int,
) -> tuple[Int[Tensor, "n"], Int[Tensor, "n"]]:
    """What the model sees, and the labels."""
    ### BEGIN SOLUTION
    chosen = (pick < CHOSEN)[word] & (word >= 0)                   # (n,)
    seen = ids.masked_fill(chosen & (dice < MASKED), mask_id)
    seen = torch.where(chosen & (dice >= MASKED) & (dice < RANDOM), other, seen)
    return seen, ids.masked_fill(~chosen, -100)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-hide-words", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("hide-words") as show:
    for _ in range(3):
        words = show.random_size(60, 80)
        lengths = show.randint(1, 5, words)
        word = torch.cat([torch.tensor([-1]), torch.arange(words).repeat_interleave(lengths), torch.tensor([-1])])
        pick, dice = torch.cat([0.5 * show.rand(words - 1), torch.zeros(1)]).double(), show.rand(len(word)).double()
        pick[:4] = torch.tensor([0, CHOSEN, 0, 0], dtype=torch.float64)          # the second word is just at the limit,
        dice[word == 2], dice[word == 3] = MASKED, RANDOM          # and so are the dice of the next two
        ids, other = show.randint(10, 1000, len(word)), show.randint(10, 1000, len(word))
        seen, labels = hide_words(ids, word, pick, dice, other, 7)
        show(seen, f"{words} words: what the model sees")
        show(labels, "and the labels")
        show(ids, "ids, afterwards")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

for task in ("hide-words", "join-pair", "corrupt-spans", "pseudo-likelihood"):
    forbid(task, "txlib")


def is_masked(dice):
    return dice < MASKED


def is_replaced(dice):
    return (dice >= MASKED) & (dice < RANDOM)


def hidden(chosen, masked=is_masked, replaced=is_replaced, labelled=None):
    """An answer with other rules; `chosen` takes (word, pick, dice)."""
    def answer(ids, word, pick, dice, other, mask_id):
        where = chosen(word, pick, dice)
        seen = torch.where(where & replaced(dice), other, ids.masked_fill(where & masked(dice), mask_id))
        return seen, ids.masked_fill(~(where if labelled is None else where & labelled(word, dice)), -100)
    return answer


def whole(word, pick, dice):
    return (pick < CHOSEN)[word] & (word >= 0)


def is_first(word):
    return torch.cat([torch.tensor([True]), word[1:] != word[:-1]])


def one_dice(ids, word, pick, dice, other, mask_id):
    first = is_first(word).nonzero()[:, 0]
    return hide_words(ids, word, pick, dice[first[is_first(word).cumsum(0) - 1]], other, mask_id)


def labels_of_seen(ids, word, pick, dice, other, mask_id):
    seen, labels = hide_words(ids, word, pick, dice, other, mask_id)
    return seen, torch.where(labels == -100, labels, seen)


def zeros_elsewhere(ids, word, pick, dice, other, mask_id):
    seen, labels = hide_words(ids, word, pick, dice, other, mask_id)
    return seen, labels.masked_fill(labels == -100, 0)


def in_place(ids, word, pick, dice, other, mask_id):
    seen, labels = hide_words(ids, word, pick, dice, other, mask_id)
    ids.copy_(seen)
    return ids, labels


mistake("hide-words", hidden(lambda word, pick, dice: (pick < CHOSEN)[word]),
        "Special tokens are chosen as well: their word is −1, and as an index that means the *last* word. Add `& (word >= 0)`.")
mistake("hide-words", hidden(lambda word, pick, dice: whole(word, pick, dice) & is_first(word)),
        "Only the first piece of a chosen word is chosen. The rest would give it away: all its pieces are.")
mistake("hide-words", hidden(lambda word, pick, dice: torch.cat([pick, pick.new_ones(len(word))])[: len(word)] < CHOSEN),
        "`pick` is read per token, but it has one number per *word*: `pick[word]`.")
mistake("hide-words", one_dice,
        "The whole word uses the dice of its first piece. Each piece has its own.")
mistake("hide-words", hidden(whole, labelled=lambda word, dice: is_masked(dice)),
        "Only the masked pieces have labels. The model is asked for *all* chosen ones, including those where it sees a random "
        "token or the right one.")
mistake("hide-words", hidden(whole, lambda dice: dice < 2, lambda dice: dice > 2),
        "Every chosen piece is masked. Only those with `dice` below {{MASKED}} are.")
mistake("hide-words", hidden(whole, replaced=lambda dice: dice >= RANDOM),
        "Random and kept are exchanged: from {{MASKED}} to below {{RANDOM}} a token becomes `other`, "
        "from {{RANDOM}} on it stays.")
mistake("hide-words", hidden(whole, replaced=lambda dice: dice >= MASKED),
        "All chosen pieces that are not masked become random. From {{RANDOM}} on they stay the same.")
mistake("hide-words", labels_of_seen,
        "The labels are taken from the corrupted text. Then the right answer to `[MASK]` is `[MASK]`. Take them from `ids`.")
mistake("hide-words", zeros_elsewhere,
        "Tokens that are not chosen have the label 0, which is a token. Cross-entropy ignores −100.")
mistake("hide-words", in_place,
        "`ids` has changed, and the caller still needs it. Make a new tensor, with `masked_fill` or `torch.where`.")


def by_loops(ids, word, pick, dice, other, mask_id):
    seen, labels = ids.clone(), torch.full_like(ids, -100)
    for i, w in enumerate(word.tolist()):
        if w >= 0 and pick[w] < CHOSEN:
            labels[i] = ids[i]
            seen[i] = mask_id if dice[i] < MASKED else other[i] if dice[i] < RANDOM else ids[i]
    return seen, labels


mistake("hide-words", hidden(lambda word, pick, dice: word >= 0),
        "Every word is chosen. Only words whose `pick` is below {{CHOSEN}} are.")
mistake("hide-words", hidden(lambda word, pick, dice: (pick >= CHOSEN)[word] & (word >= 0)),
        "The wrong words are chosen. Word `w` is chosen if `pick[w]` is *below* {{CHOSEN}}.")
mistake("hide-words", hidden(lambda word, pick, dice: (pick > CHOSEN)[word] & (word >= 0)),
        "The wrong words are chosen. Word `w` is chosen if `pick[w]` is *below* {{CHOSEN}}.")
mistake("hide-words", hidden(lambda word, pick, dice: (pick < CHOSEN)[word] & (word > 0)),
        "Word 0 is never chosen. It is a word like any other; only −1 marks special tokens.")
LIMITS = "Mind the limits: *below* {{CHOSEN}}, *from* {{MASKED}} on, *from* {{RANDOM}} on."
mistake("hide-words", hidden(lambda word, pick, dice: (pick <= CHOSEN)[word] & (word >= 0)), LIMITS)
mistake("hide-words", hidden(whole, replaced=lambda dice: (dice > MASKED) & (dice < RANDOM)), LIMITS)
mistake("hide-words", hidden(whole, replaced=lambda dice: (dice >= MASKED) & (dice <= RANDOM)), LIMITS)
mistake("hide-words", hidden(whole, masked=lambda dice: dice >= 0),
        "From {{RANDOM}} on a chosen piece stays the same. Yours becomes `mask_id`.")
mistake("hide-words", hidden(whole, replaced=lambda dice: dice > 2),
        "No piece becomes `other`: from {{MASKED}} to below {{RANDOM}} it should.")
mistake("hide-words", hidden(whole, replaced=lambda dice: dice < RANDOM),
        "Where `dice` is below {{MASKED}}, a chosen piece becomes `mask_id`. Yours becomes `other` again.")


def all_masked(ids, word, pick, dice, other, mask_id):
    seen, labels = hide_words(ids, word, pick, dice, other, mask_id)
    return torch.where(whole(word, pick, dice), seen, ids.masked_fill(is_masked(dice), mask_id)), labels


def all_replaced(ids, word, pick, dice, other, mask_id):
    seen, labels = hide_words(ids, word, pick, dice, other, mask_id)
    return torch.where(is_replaced(dice), other, seen), labels


for answer in (all_masked, all_replaced):
    mistake("hide-words", answer, "Pieces that were not chosen change. The dice count for *chosen* pieces only.")
alternative("hide-words", by_loops)
equivalent("hide-words", "dice < MASKED → dice <= MASKED", "At exactly this number `other` replaces it afterward.")

# %% [markdown]
# ### Task 2 · Two sentences, one row   ●●○○○ · 10 minutes · 3 points
#
# Build `[CLS] a [SEP] b [SEP]` and its segments: 0 up to and including the first `[SEP]`, 1 after it. The row must have at
# most `max_length` tokens. If it is too long, remove tokens one at a time from the *end of the longer* of the two
# sentences until it fits; if both are equally long, remove one from `b`. If `b` is `None`, the row is `[CLS] a [SEP]`,
# and `a` is cut at its end. (An empty `b` is still a sentence: its row has two `[SEP]`.) `max_length` is at least 3, or 2
# without `b`: the special tokens always fit.
#
# The lists `a` and `b` themselves must not change.
#
# <details><summary>Hint 1: how much room is there?</summary>
#
# Three special tokens with two sentences, two with one. The rest is for `a` and `b` together.
# </details>
# <details><summary>Hint 2: one at a time?</summary>
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
    show([join_pair(a, b, 1, 2, room) for room in (n + 6, n + 5)], f"{n} and 3 tokens: they just fit; one too many")
    show([join_pair(a, b, 1, 2, room) for room in (4, 3)], f"{n} and 3 tokens, max_length 4 and 3")
    show(join_pair(a, [], 1, 2, 64), f"{n} and no tokens")
    show(join_pair(a, None, 1, 2, 6), f"{n} tokens alone, max_length 6")
    show([join_pair(a, None, 1, 2, room) for room in (n + 3, n + 2, n + 1)],
         f"{n} tokens alone: room for more, they just fit, one too many")
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
        "You leave no room for the special tokens: the row is longer than `max_length`. Two sentences share `max_length - 3`.")
mistake("join-pair", cut_at_the_end,
        "The whole row is cut at its end. Then the last `[SEP]` is lost, and perhaps all of `b`. Shorten the sentences "
        "before you join them.")
mistake("join-pair", joined(from_b), "Only `b` is shortened. Each time, remove a token from whichever is *longer* now.")
mistake("join-pair", joined(halves),
        "Each sentence gets half of the room. A short one then wastes room that the long one needs. Remove tokens one at a "
        "time from the longer one.")
mistake("join-pair", joined(from_a_at_ties), "If both are equally long, remove the token from `b`.")
mistake("join-pair", joined(from_the_front), "Tokens are removed from the front. Remove them from the *end* of a sentence.")
mistake("join-pair", joined(fairly, lambda a, b: [0] * (len(a) + 1) + [1] * (len(b) + 2)),
        "The first `[SEP]` has segment 1. It ends `a`, so it belongs to segment 0.")
mistake("join-pair", joined(fairly, lambda a, b: [0] * (len(a) + 2) + [1] * len(b) + [0]),
        "The last `[SEP]` has segment 0. It ends `b`, so it belongs to segment 1.")
mistake("join-pair", joined(fairly, lambda a, b: [0] * (len(a) + len(b) + 3)),
        "Every token has segment 0. After the first `[SEP]` it is 1.")
mistake("join-pair", sep_alone,
        "A single sentence has two `[SEP]`. If `b` is `None`, the row is `[CLS] a [SEP]`.")
mistake("join-pair", three_alone,
        "A single sentence loses one token too many. Its row has two special tokens, not three: `max_length - 2`.")
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


def special_alone(a, b, cls_id, sep_id, max_length):
    return join_pair(a, b, cls_id, sep_id, max_length + 2 * (b is None))


def empty_is_none(a, b, cls_id, sep_id, max_length):
    return join_pair(a, b or None, cls_id, sep_id, max_length)


def segments_alone(kinds):
    def answer(a, b, cls_id, sep_id, max_length):
        tokens, segments = join_pair(a, b, cls_id, sep_id, max_length)
        return tokens, kinds(len(tokens) - 2) if b is None else segments
    return answer


def changing_one(which):
    def answer(a, b, cls_id, sep_id, max_length):
        copies = list(a), b and list(b)
        row = changing(copies[0], copies[1], cls_id, sep_id, max_length)
        if b is not None:
            (a, b)[which][:] = copies[which]
        return row
    return answer


mistake("join-pair", special_alone,
        "The row of a single sentence is too long: its two special tokens need room as well, so `max_length - 2` are left.")
mistake("join-pair", empty_is_none,
        "An empty `b` is not a missing `b`: its row ends in two `[SEP]`. Test `b is None`.")
SEGMENTS = "Each token of the row has a segment, including the special ones."
for kinds in (lambda n: [0], lambda n: [0] * n, lambda n: [0] * 2, lambda n: [0] * (n + 1)):
    mistake("join-pair", segments_alone(kinds), SEGMENTS)
for kinds in (lambda a, b: [0] * len(a) + [1] * (len(b) + 1), lambda a, b: [0] * (len(a) + 2) + [1] * len(b),
              lambda a, b: [0] * len(a) + [1] * len(b), lambda a, b: [0] + [1] * (len(b) + 1),
              lambda a, b: [0] * 2 + [1] * (len(b) + 1), lambda a, b: [0] * (len(a) + 2) + [1],
              lambda a, b: [0] * (len(a) + 2), lambda a, b: [1] * (len(b) + 1),
              lambda a, b: [0] * (len(a) + 1) + [1] * (len(b) + 1)):
    mistake("join-pair", joined(fairly, kinds), SEGMENTS)
for which in (0, 1):
    mistake("join-pair", changing_one(which),
            "`a` or `b` has changed: `pop()` works on the list that you were given. Make a copy first: `a, b = list(a), list(b)`.")
alternative("join-pair", by_lengths)

# %% [markdown]
# ### Task 3 · T5's span corruption   ●●●○○ · 12 minutes · 3 points
#
# T5 (Raffel et al. 2020, §3.1.4) is an encoder–decoder. It replaces *spans* of a text by *one* mark each, and its decoder
# writes what was there. You get the tokens, and the spans as pairs (first, length), in order and never adjacent; every
# length is at least 1. Return
#
# - the input: the text, with each span replaced by a mark. The marks are `first_mark`, `first_mark - 1`, …: T5 numbers
#   them downward from the top of its vocabulary;
# - the target: for each span its mark and then its tokens; at the end one more mark, the next in order. (Without spans the
#   target is `first_mark` alone.)
#
# *Thank you for inviting me to your party*, with *for inviting* and *party* hidden, becomes `Thank you <X> me to your <Y>`
# and `<X> for inviting <Y> party <Z>`.
#
# <details><summary>Hint 1: one pass</summary>
#
# Remember where the last span ended, `done = 0` at first. The tokens from `done` up to `first` go into the input.
# </details>
# <details><summary>Hint 2: which mark?</summary>
#
# `for number, (first, length) in enumerate(spans)`: the mark is `first_mark - number`.
# </details>
# <details><summary>Hint 3: after the last span</summary>
#
# The rest of the text belongs to the input, and the mark `first_mark - len(spans)` to the target.
# </details>

# %% nbgrader={"grade_id": "corrupt-spans", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def corrupt_spans(
    ids: list[int], spans: list[tuple[int, int]], first_mark: int
) -> tuple[list[int], list[int]]:
    """What the encoder reads, and what the decoder is to write."""
    ### BEGIN SOLUTION
    seen, target, done = [], [], 0
    for number, (first, length) in enumerate(spans):
        mark = first_mark - number
        seen += [*ids[done:first], mark]
        target += [mark, *ids[first : first + length]]
        done = first + length
    return seen + ids[done:], [*target, first_mark - len(spans)]
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-corrupt-spans", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("corrupt-spans") as show:
    for number in (2, 4, 1, 0):
        n = show.random_size(20, 30)
        ids = show.randint(10, 99, n).tolist()
        cuts = sorted(show.permutation(n - 4)[: 2 * number].tolist())
        spans = [(first + 1, last - first) for first, last in zip(cuts[::2], cuts[1::2])]
        show(corrupt_spans(ids, spans, 999), f"{n} tokens, spans {spans}")
    show(corrupt_spans(ids, [(0, 3), (n - 2, 2)], 500), f"{n} tokens, the first three and the last two")
    show(corrupt_spans(ids, [(0, n)], 500), f"{n} tokens, all in one span")

# %% tags=["mistakes"]
def spans_with(mark=lambda first_mark, number: first_mark - number, ending=True, per_token=False, rest=True):
    """Span corruption with other rules."""
    def answer(ids, spans, first_mark):
        seen, target, done = [], [], 0
        for number, (first, length) in enumerate(spans):
            marks = [mark(first_mark, number)]
            seen += [*ids[done:first], *(marks * length if per_token else marks)]
            target += [*marks, *ids[first : first + length]]
            done = first + length
        return seen + (ids[done:] if rest else []), target + ([mark(first_mark, len(spans))] if ending else [])
    return answer


def last_inclusive(ids, spans, first_mark):
    return corrupt_spans(ids, [(first, max(1, length - 1)) for first, length in spans], first_mark)


def as_ends(ids, spans, first_mark):
    seen, target, done = [], [], 0
    for number, (first, last) in enumerate(spans):
        seen += [*ids[done:first], first_mark - number]
        target += [first_mark - number, *ids[first:last]]
        done = last
    return seen + ids[done:], [*target, first_mark - len(spans)]


mistake("corrupt-spans", spans_with(mark=lambda first_mark, number: first_mark),
        "All spans have the same mark, so the decoder can't say which one it fills. The second is `first_mark - 1`.")
mistake("corrupt-spans", spans_with(mark=lambda first_mark, number: first_mark + number),
        "The marks count up. They should count down, from the top of the vocabulary.")
mistake("corrupt-spans", spans_with(ending=False),
        "The target's last mark is missing. It tells the decoder where the last span ends.")
mistake("corrupt-spans", spans_with(per_token=True),
        "Each token has a mark. A whole span is replaced by *one*: the decoder has to find out how long it is.")
mistake("corrupt-spans", spans_with(rest=False),
        "The text after the last span is lost. It belongs to the input.")
mistake("corrupt-spans", as_ends,
        "You read the second number as the position where the span ends. It is the *length*: `ids[first : first + length]`.")
mistake("corrupt-spans", last_inclusive,
        "The spans are one token too short. From `first` on there are `length` tokens: `ids[first : first + length]`.")
mistake("corrupt-spans", lambda ids, spans, first_mark: (corrupt_spans(ids, spans, first_mark)[0], list(ids)),
        "The target is the whole text. T5's decoder writes only what is missing, with its marks. (BART's writes all.)")


def backwards(ids, spans, first_mark):
    seen, target = list(ids), [first_mark - len(spans)]
    for number in reversed(range(len(spans))):
        first, length = spans[number]
        target = [first_mark - number, *seen[first : first + length], *target]
        seen[first : first + length] = [first_mark - number]
    return seen, target


def goes_on(done=lambda first, length: first + length, hidden=lambda ids, first, length: ids[first : first + length]):
    """Span corruption that goes on elsewhere, or hides something else."""
    def answer(ids, spans, first_mark):
        seen, target, end = [], [], 0
        for number, (first, length) in enumerate(spans):
            seen += [*ids[end:first], first_mark - number]
            target += [first_mark - number, *hidden(ids, first, length)]
            end = done(first, length)
        return seen + ids[end:], [*target, first_mark - len(spans)]
    return answer


def one_mark(ids, spans, first_mark):
    seen, target = corrupt_spans(ids, spans, first_mark)
    marks = range(first_mark - len(spans) + 1, first_mark + 1)
    seen, target = ([first_mark if token in marks else token for token in row] for row in (seen, target))
    return seen, target


mistake("corrupt-spans", one_mark,
        "All spans have the same mark, so the decoder can't say which one it fills. The second is `first_mark - 1`.")
mistake("corrupt-spans", goes_on(hidden=lambda ids, first, length: []),
        "The target holds only marks. Each mark is followed by the tokens that it replaced.")
mistake("corrupt-spans", goes_on(hidden=lambda ids, first, length: ids[first:length]),
        "`ids[first:length]` ends at position `length`. The span ends at `first + length`.")
mistake("corrupt-spans", goes_on(done=lambda first, length: first),
        "The spans are still in the input, behind their marks. The input goes on after the span, at `first + length`.")
for done in (lambda first, length: 0, lambda first, length: length):
    mistake("corrupt-spans", goes_on(done=done),
            "The input goes on at the wrong position after a span. The last one ended at `first + length`.")
alternative("corrupt-spans", backwards)

# %% [markdown]
# ### Task 4 · How likely is a sentence?   ●●●○○ · 14 minutes · 3 points
#
# A GPT gives each text a probability. A BERT does not, but you can ask it for every token in turn: hide token $i$, and no
# other, and read the log-probability of the original token. The sum over all ordinary tokens is the
# *pseudo-log-likelihood* (Salazar et al. 2020), which ranks sentences well:
#
# $$\text{PLL}(x) = \sum_i \log p(x_i \mid x \text{ without } x_i)$$
#
# `model(rows)` takes rows of tokens (rows, n) and returns logits (rows, n, vocab). Call it *once*, with one row for each
# ordinary token, and return the sum. Where `special` is True, nothing is hidden and nothing counts. The check counts the
# calls.
#
# <details><summary>Hint 1: the rows</summary>
#
# `hidden = (~special).nonzero()[:, 0]` has the positions to hide; `ids.repeat(len(hidden), 1)` has a copy of the text for
# each.
# </details>
# <details><summary>Hint 2: one mask in each row</summary>
#
# `rows[torch.arange(len(hidden)), hidden] = mask_id`.
# </details>
# <details><summary>Hint 3: what to read</summary>
#
# In row r, only the position that is hidden there: `logits[torch.arange(len(hidden)), hidden]`. Then `log_softmax`, and
# from each row the entry of the true token.
# </details>

# %% nbgrader={"grade_id": "pseudo-likelihood", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def pseudo_likelihood(
    model: Callable[[Int[Tensor, "rows n"]], Float[Tensor, "rows n vocab"]],
    ids: Int[Tensor, "n"],
    special: Bool[Tensor, "n"],
    mask_id: int,
) -> Float[Tensor, ""]:
    """The sum of the log-probabilities of all ordinary tokens, each hidden in turn."""
    ### BEGIN SOLUTION
    hidden = (~special).nonzero()[:, 0]                            # (rows,)
    row = torch.arange(len(hidden))
    rows = ids.repeat(len(hidden), 1)                              # (rows, n)
    rows[row, hidden] = mask_id
    logp = model(rows)[row, hidden].log_softmax(dim=-1)            # (rows, vocab)
    return logp[row, ids[hidden]].sum()
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-pseudo-likelihood", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("pseudo-likelihood") as show:
    for special in (2, 3, 3):
        n, vocab = show.random_size(7, 12), 20
        table, mix = show.randn(vocab, 16), 0.5 * show.randn(n, n)
        wide, narrow = show.randn(16, 4000), show.randn(4000, 16) / 250

        def model(rows):
            vectors = table @ wide @ narrow                        # the same work at each call, and far more than the rest
            return torch.tanh(mix @ vectors[rows]) @ vectors.T     # every position reads every token

        ids = torch.cat([torch.tensor([0]), show.randint(3, vocab, n - 2), torch.tensor([1])])
        if special == 3:
            ids[show.random_size(2, n - 3)] = 1
        spent = cost(pseudo_likelihood, model, ids, ids < 2, 2)
        show([spent.value, round(spent.operations / (4 * vocab * 16 * 4000))],
             f"a text of {n} tokens, {special} of them special: its score, and how often the model was called")

# %% tags=["mistakes"]
def scored(hide=True, all_places=False, mean=False, log=True, every=False):
    """A score with other rules."""
    def answer(model, ids, special, mask_id):
        places = torch.arange(len(ids)) if all_places else (~special).nonzero()[:, 0]
        row, rows = torch.arange(len(places)), ids.repeat(len(places), 1)
        if every:
            rows[:, places] = mask_id
        elif hide:
            rows[row, places] = mask_id
        logits = model(rows)[row, places]
        found = (logits.log_softmax(dim=-1) if log else logits)[row, ids[places]]
        return found.mean() if mean else found.sum()
    return answer


def one_by_one(model, ids, special, mask_id):
    total = torch.zeros(())
    for place in (~special).nonzero()[:, 0].tolist():
        rows = ids[None].clone()
        rows[0, place] = mask_id
        total = total + model(rows)[0, place].log_softmax(dim=-1)[ids[place]]
    return total


def all_read(model, ids, special, mask_id):
    places = (~special).nonzero()[:, 0]
    row, rows = torch.arange(len(places)), ids.repeat(len(places), 1)
    rows[row, places] = mask_id
    logp = model(rows).log_softmax(dim=-1)
    return logp.gather(-1, ids.repeat(len(places), 1)[..., None])[..., 0][:, ~special].sum()


def cumulative(model, ids, special, mask_id):
    places = (~special).nonzero()[:, 0]
    row, rows = torch.arange(len(places)), ids.repeat(len(places), 1)
    rows = rows.masked_fill((torch.arange(len(ids)) >= places[:, None]) & ~special, mask_id)
    return model(rows)[row, places].log_softmax(dim=-1)[row, ids[places]].sum()


mistake("pseudo-likelihood", scored(hide=False),
        "Nothing is hidden: the model sees each token that it is asked for. Replace it by `mask_id`.")
mistake("pseudo-likelihood", scored(every=True),
        "All ordinary tokens are hidden at once. Hide *one* in each row: the others are its context.")
mistake("pseudo-likelihood", cumulative,
        "All later tokens are hidden as well. That is how a GPT reads; here the model may see both sides.")
mistake("pseudo-likelihood", scored(all_places=True),
        "Special tokens are hidden and counted as well. They are in every text: leave them out.")
mistake("pseudo-likelihood", scored(mean=True),
        "This is the mean per token. Return the sum.")
mistake("pseudo-likelihood", scored(log=False),
        "These are logits. Turn them into log-probabilities first, with `log_softmax`.")
mistake("pseudo-likelihood", all_read,
        "You read all positions of each row. Only the hidden one is a guess; at the others the model sees the answer.")
mistake("pseudo-likelihood", one_by_one,
        "Right, but the model is called once per token. Make one batch of all rows, and call it once.")


def by_eye(model, ids, special, mask_id):
    places = torch.arange(len(ids))[~special]
    rows = torch.where(torch.arange(len(ids)) == places[:, None], mask_id, ids)
    logits = model(rows)
    return -torch.nn.functional.cross_entropy(
        torch.stack([logits[r, place] for r, place in enumerate(places)]), ids[places], reduction="sum")


mistake("pseudo-likelihood", lambda model, ids, special, mask_id: (
            pseudo_likelihood(model, ids, torch.arange(len(ids)) % (len(ids) - 1) == 0, mask_id)),
        "You leave out the first and the last token. Special tokens may be elsewhere as well: read `special`.")
alternative("pseudo-likelihood", by_eye)
equivalent("pseudo-likelihood", "(~special).nonzero()[:, 0] → (~special).nonzero()[:, -1]",
           "Positions on one axis have one number each.")

# %% [markdown]
# ### Task 5 · Investigate: what does it read?   ●●●●○ · 25 minutes · 4 points
#
# An open question, with no single right answer. The course comes with a small pre-trained BERT (lesson 14 §5). Choose one
# question, or ask your own, and answer it with a measurement on at least 200 hidden tokens in texts that the model has
# not read:
#
# - How far does it look? Hide one token, and replace all others that are more than $k$ positions away by random tokens.
#   From which $k$ on does it guess as well as with the whole text? (Five values of $k$ are enough: 0, 1, 2, 4 and 8.)
# - Which side tells more? Damage only the left, or only the right.
# - What is hard? Compare names, verbs and small words, or frequent and rare tokens.
# - Does `[MASK]` matter? Put a random token there instead, or leave the position out.
#
# Begin with this in a cell of your own (here you may use txlib):
#
# ```python
# from txlib import load_pretrained
# from txlib.data import shipped, verses
# from txlib.text import BytePairEncoder
#
# model = load_pretrained(shipped("bert-tiny"), dtype=torch.float32).eval()
# pieces = BytePairEncoder.load(shipped("bert-tiny") / "tokenizer.json")
# texts = [modern for _, modern in verses().test]
# text = "[CLS] And God[MASK] unto Moses.[SEP]"  # the space before a word belongs to its token: none before [MASK]
# logits = model(torch.tensor([pieces.encode(text)])).prediction_logits
# ```
#
# Then write below, in six to ten sentences: your question, what you measured and on how many tokens, the numbers next to
# those of a baseline or of chance, how far they could move by chance, and what they do *not* show.
#
# <details><summary>Hint: how far can an accuracy move by chance?</summary>
#
# With $n$ independent tokens an accuracy $p$ has the standard error $\sqrt{p (1 - p) / n}$: with $p = 0.4$ and $n = 400$
# it is 0.024. The difference of two accuracies from different tokens has $\sqrt{2}$ times that. Call them different if
# they are at least two such standard errors apart. (From the *same* tokens, as with each $k$ above, both move together, so
# this is on the safe side.)
# </details>

# %% [markdown] nbgrader={"grade_id": "investigate-reading", "solution": true, "grade": true, "points": 4, "locked": false, "schema_version": 3}
# <!-- BEGIN SOLUTION -->
# How far does it look? I hid one ordinary token in each of 400 verses of the test split, and replaced all ordinary tokens
# more than k positions away by random ones, with the same hidden tokens for each k. It guessed 6% for k = 0 (everything
# else is random), 28% for k = 1, 38% for k = 2, 39% for k = 4, 45% for k = 8, and 47% with the whole verse. The baseline,
# always the most frequent token, gets 6%. Each accuracy has a standard error of at most 2.5 points, so I call two of them
# different if they are 7 points apart: one neighbor on each side already brings more than half of the gain, and from
# k = 8 on I see no difference. This does not show that more distant tokens are never used. Random tokens also mislead, so
# part of the loss may be due to them and not to the missing context; and the verses are short, 20 to 60 tokens, so there
# is little beyond 8.
# <!-- END SOLUTION -->

# %% [markdown] tags=["rubric"]
# 1 point: a question that a measurement can answer, on at least 200 tokens of unseen text, all else kept equal. 1 point:
# numbers for each condition, next to a baseline or chance. 1 point: how far they move by chance (a standard deviation of
# about 2 to 3.5 points for 200 to 400 tokens), and only larger differences are called differences. 1 point: what they do
# not show, such as a side effect of the damage, the kind of text, the size of the model.

# %%
check.summary()
