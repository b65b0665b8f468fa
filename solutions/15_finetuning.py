# %% [markdown]
# # Exercise 15 · Fine-tuning
#
# Seven tasks, 21 points, about 95 minutes. [Lesson 15](../notebooks/15_finetuning.ipynb) has the ideas; here you apply
# them to new problems. Tasks 1 and 2 are the *core*, about 30 minutes; tasks 3 to 7 are *more*. Run the cells from the
# top; fill in where it says *your turn*, then run the check below it. You may check as often as you like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0

# %%
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from txgrade import check

# %% [markdown]
# ### Task 1 · From tags to names   ●●●○○ · 14 minutes · 3 points
#
# A tagger has given each *piece* a tag. People want names: *New York*, a location, words 3 to 4. A tag is `O` (no name), or
# `B-` (*begins* a name) or `I-` (*inside* a name) and a kind, such as `B-LOC`. Return a list with each name as
# (first word, last word, kind), in order:
#
# - `word` says which word each piece belongs to (0, 1, 2 …), or −1 for special tokens. A word has the tag of its *first*
#   piece;
# - a name continues as long as each next word has `I-` and the same kind;
# - `B-` begins a new name, even right after another of the same kind;
# - taggers also produce tags that make no sense: an `I-` after `O`, or after another kind. It begins a new name as well.
#
# <details><summary>Hint 1: words first</summary>
#
# Go through pieces and tags together, and keep those whose word differs from the one before, and is not −1.
# </details>
# <details><summary>Hint 2: a new name or the same?</summary>
#
# A name continues exactly if the tag starts with `I-` *and* the word before has the same kind. `tag.partition("-")` gives
# letter, "-", kind.
# </details>
# <details><summary>Hint 3: how to keep an open name?</summary>
#
# Append `(first, last, kind)` where a name begins; where it continues, replace the latest one by one with a new `last`.
# </details>

# %% nbgrader={"grade_id": "find-names", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def find_names(tags: list[str], word: list[int]) -> list[tuple[int, int, str]]:
    """First word, last word and kind of each name."""
    ### BEGIN SOLUTION
    names, before = [], -1
    for tag, number in zip(tags, word):
        if number in (-1, before):
            continue
        letter, _, kind = tag.partition("-")
        if letter == "I" and names and names[-1][1:] == (number - 1, kind):
            names[-1] = (names[-1][0], number, kind)
        elif letter != "O":
            names.append((number, number, kind))
        before = number
    return names
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-find-names", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("find-names") as show:
    choices = ["O", "B-PER", "I-PER", "I-PER", "B-LOC", "I-LOC"]
    for _ in range(3):
        words = show.random_size(14, 20)
        pieces = show.randint(1, 4, words).tolist()
        word = [-1, *[number for number, count in enumerate(pieces) for _ in range(count)], -1]
        tags = [show.choice(choices) for _ in word]
        show(find_names(tags, word), f"{words} words, a tagger that has learned nothing")
    count = show.random_size(2, 4)
    show(find_names(["O", *["B-PER", "I-PER"] * count, "O"], [-1, *range(2 * count), -1]), f"{count} names in a row")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, measured, mistake

forbid("*", "txlib")


def names_with(goes_on, first=True, special=True):
    """`goes_on(letter, same kind)` says whether a tag right after a name continues it."""
    def answer(tags, word):
        names, by_word = [], {}
        for tag, place in zip(tags, word):
            if place >= 0 or not special:
                if not first or place not in by_word:
                    by_word[place] = tag
        for place, tag in sorted(by_word.items()):
            letter, _, kind = tag.partition("-")
            if letter != "O" and names and names[-1][1] == place - 1 and goes_on(letter, names[-1][2] == kind):
                names[-1] = (names[-1][0], place, names[-1][2])
            elif letter != "O":
                names.append((place, place, kind))
        return names
    return answer


def strict(tags, word):
    names, inside, before = [], False, -1
    for tag, place in zip(tags, word):
        if place in (-1, before):
            continue
        letter, _, kind = tag.partition("-")
        if letter == "B":
            names.append((place, place, kind))
            inside = True
        elif letter == "I" and inside and names[-1][2] == kind:
            names[-1] = (names[-1][0], place, kind)
        else:
            inside = False
        before = place
    return names


def by_piece(tags, word):
    return find_names(tags, list(range(len(tags))))


mistake("find-names", names_with(lambda letter, same: same),
        "You let `B-` continue a name of the same kind. It begins a new one: that is what `B-` is for.")
mistake("find-names", names_with(lambda letter, same: letter == "I"),
        "You let an `I-` of *another* kind continue the name before. It begins a new one.")
mistake("find-names", names_with(lambda letter, same: False),
        "Every word is a name of its own. `I-` of the same kind continues the name before.")
mistake("find-names", strict,
        "An `I-` after `O`, or after another kind, is dropped. Here it begins a new name.")
mistake("find-names", names_with(lambda letter, same: letter == "I" and same, first=False),
        "You give a word the tag of its *last* piece. The tagger was trained on the first.")
mistake("find-names", by_piece,
        "You count pieces. Return the numbers of *words*: `word` says which word a piece belongs to.")
mistake("find-names", lambda tags, word: [(first, last + 1, kind) for first, last, kind in find_names(tags, word)],
        "Your names end one word too late. Return the last word, not the one after it.")
mistake("find-names", names_with(lambda letter, same: letter == "I" and same, special=False),
        "You treat special tokens as a word. Skip them: there `word` is −1.")


def by_words(tags, word):
    first = {}
    for place, tag in zip(word, tags):
        first.setdefault(place, tag)
    kinds = ["O", *[first[place] for place in range(max(word) + 1)], "O"]
    starts = [i for i in range(1, len(kinds) - 1) if kinds[i] != "O"
              and not (kinds[i][0] == "I" and kinds[i - 1][2:] == kinds[i][2:] and kinds[i - 1] != "O")]
    found = []
    for start in starts:
        end = start
        while kinds[end + 1] == "I-" + kinds[start][2:]:
            end += 1
        found.append((start - 1, end - 1, kinds[start][2:]))
    return found


def goes_on_anyway(tags, word):
    names, before = [], -1
    for tag, place in zip(tags, word):
        if place not in (-1, before):
            letter, _, kind = tag.partition("-")
            if letter == "I" and names:
                names[-1] = (names[-1][0], place, kind)
            elif letter != "O":
                names.append((place, place, kind))
            before = place
    return names


def each_piece(tags, word, special=False):
    names = []
    for tag, place in zip(tags, word):
        letter, _, kind = tag.partition("-")
        if place == -1 and not special:
            continue
        if letter == "I" and names and names[-1][1:] == (place - 1, kind):
            names[-1] = (names[-1][0], place, kind)
        elif letter != "O":
            names.append((place, place, kind))
    return names


def first_words(tags, word):
    return [(first, first, kind) for first, _, kind in find_names(tags, word)]


mistake("find-names", goes_on_anyway,
        "You let an `I-` continue the last name, however far back it ended and whatever its kind. The *word before* must "
        "belong to a name of the same kind.")
for special in (False, True):
    mistake("find-names", lambda tags, word, special=special: each_piece(tags, word, special),
            "You read the tag of every piece. A word has one tag, that of its *first* piece: skip the others.")
mistake("find-names", first_words,
        "Each of your names ends with its first word. Where a name continues, its last word moves on.")
alternative("find-names", by_words)
equivalent("find-names", "([], -1) → ([], -2)", "Special tokens are skipped anyway.")

# %% [markdown]
# ### Task 2 · An answer, or none   ●●●○○ · 14 minutes · 3 points
#
# SQuAD 2.0 also has questions that the text does not answer. For these BERT points at `[CLS]`, token 0 (Devlin et al.
# 2019, §4.3). A span head gives each token two scores: for being the first token of the answer, and for being the last.
# Take the pair `(first, last)` with the highest sum of `start[first]` and `end[last]`, such that
#
# - first ≤ last;
# - the span has at most `longest` tokens;
# - both ends are tokens of the context (`context` is True there), not of the question. `[CLS]` is never context.
#
# If its sum is *more* than `threshold` above that of "no answer", `start[0] + end[0]`, return the pair, two ints; otherwise
# return `None`; likewise if no pair is allowed. In every check the best pair is unique.
#
# <details><summary>Hint 1: all pairs at once</summary>
#
# `start[:, None] + end[None, :]` is a table: row first, column last.
# </details>
# <details><summary>Hint 2: which pairs are allowed?</summary>
#
# `last - first` must be at least 0 and at most `longest - 1`. Give all others the score −∞.
# </details>
# <details><summary>Hint 3: where is the maximum?</summary>
#
# `int(table.argmax())` counts through the whole table, row after row. `divmod(index, n)` gives row and column.
# `table.max()` is the sum to compare.
# </details>

# %% nbgrader={"grade_id": "span-or-none", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def span_or_none(
    start: Float[Tensor, "n"], end: Float[Tensor, "n"], context: Bool[Tensor, "n"], longest: int, threshold: float
) -> tuple[int, int] | None:
    """The first and the last token of the best span, or None where the text has no answer."""
    ### BEGIN SOLUTION
    n = len(start)
    length = torch.arange(n)[None, :] - torch.arange(n)[:, None] + 1             # (first, last)
    allowed = (length >= 1) & (length <= longest) & context[:, None] & context[None, :]
    score = (start[:, None] + end[None, :]).masked_fill(~allowed, float("-inf"))  # (first, last)
    if score.max() <= start[0] + end[0] + threshold:
        return None
    return divmod(int(score.argmax()), n)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-span-or-none", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("span-or-none") as show:
    for longest, threshold, level in ((1, 6.0, 0.0), (3, 0.0, 0.0), (5, -2.0, 0.0), (4, 1.0, -20.0)):
        spans = []
        for _ in range(16):
            n = show.random_size(14, 20)
            context = (torch.arange(n) >= 5) & (torch.arange(n) < n - show.random_size(1, 4))
            start, end = level + 3 * show.randn(n), 3 * show.randn(n)
            start[0], end[0] = 5 * show.rand(2) - 1 + torch.tensor([level, 0.0])
            spans.append(span_or_none(start, end, context, longest, threshold))
        scores = f"sixteen texts{', all scores low' if level else ''}"
        show(spans, f"{scores}, at most {longest} tokens, threshold {threshold}")
    n = show.random_size(7, 8)
    start, end = show.permutation(n).float(), n * show.permutation(n).float()    # each pair has another sum
    start[0], end[0], context = 1.0, -1.0, torch.arange(n) >= 2
    spans = [span_or_none(start, end, context, 4, float(threshold)) for threshold in range(n * n)]
    show(spans, f"one text with whole scores, thresholds 0 to {n * n - 1}")

# %% tags=["mistakes"]
def searched(allowed, sums=lambda start, end: start[:, None] + end[None, :], forbidden=float("-inf"),
             answers=lambda best, none, threshold: best > none + threshold):
    """A search where `allowed(length, first in context, last in context, longest)` says which pairs may be."""
    def answer(start, end, context, longest, threshold):
        n = len(start)
        length = torch.arange(n)[None, :] - torch.arange(n)[:, None] + 1
        may = allowed(length, context[:, None], context[None, :], longest)
        score = sums(start, end).masked_fill(~may, forbidden)
        return divmod(int(score.argmax()), n) if answers(score.max(), start[0] + end[0], threshold) else None
    return answer


def right_pairs(length, first, last, longest):
    return (length >= 1) & (length <= longest) & first & last


def each_alone(start, end, context, longest, threshold):
    first, last = (int(each.masked_fill(~context, -1e9).argmax()) for each in (start, end))
    return (first, last) if start[first] + end[last] > start[0] + end[0] + threshold else None


def start_first(start, end, context, longest, threshold):
    first = int(start.masked_fill(~context, -1e9).argmax())
    last = first + int(end[first : first + longest].argmax())
    return (first, last) if start[first] + end[last] > start[0] + end[0] + threshold else None


mistake("span-or-none", each_alone,
        "You choose start and end separately, so the end can come before the start. Search over *pairs*.")
mistake("span-or-none", start_first,
        "You choose the best start, and then the best end for it. A slightly worse start may have a far better end: "
        "compare the *sums* of all pairs.")
mistake("span-or-none", searched(lambda length, first, last, longest: (length.abs() <= longest) & first & last),
        "Ends before starts are allowed. A span needs first ≤ last.")
mistake("span-or-none", searched(lambda length, first, last, longest: (length >= 1) & first & last),
        "You do not limit the length. At most `longest` tokens: `last - first + 1 <= longest`.")
mistake("span-or-none", searched(lambda length, first, last, longest: right_pairs(length, first, last, longest + 1)),
        "One token too long: from first to last there are `last - first + 1` tokens.")
mistake("span-or-none", searched(lambda length, first, last, longest: (length >= 1) & (length <= longest)),
        "Your answer may be in the question, or `[CLS]` itself. Both ends must be where `context` is True.")
mistake("span-or-none", searched(right_pairs, lambda start, end: end[:, None] + start[None, :]),
        "Start and end are exchanged: in the table the row is the first token, the column the last.")
mistake("span-or-none", searched(right_pairs, lambda start, end: start[:, None] * end[None, :]),
        "The scores are multiplied. They are logits: two negative ones would make a large product. Add them.")
mistake("span-or-none", searched(right_pairs, answers=lambda best, none, threshold: True),
        "You always return an answer. If the best sum is not more than `threshold` above `start[0] + end[0]`, return `None`.")
mistake("span-or-none", searched(right_pairs, answers=lambda best, none, threshold: best > none),
        "You do not use `threshold`. It says how far an answer must be ahead of \"no answer\".")
mistake("span-or-none", searched(right_pairs, answers=lambda best, none, threshold: best > threshold),
        "You compare the best sum with the threshold alone. Compare it with `start[0] + end[0] + threshold`: a score by "
        "itself means nothing.")
mistake("span-or-none", searched(right_pairs, answers=lambda best, none, threshold: best > none - threshold),
        "The threshold has the wrong sign: a high one should make answers *rarer*.")


def by_loops(start, end, context, longest, threshold):
    sums = {(first, last): (start[first] + end[last]).item() for first in range(len(start)) if context[first]
            for last in range(first, min(len(start), first + longest)) if context[last]}
    best = max(sums, key=sums.get)
    return best if sums[best] > (start[0] + end[0]).item() + threshold else None


mistake("span-or-none", searched(lambda length, first, last, longest: (length <= longest) & first & last),
        "Ends before starts are allowed. A span needs first ≤ last.")
mistake("span-or-none", searched(lambda length, first, last, longest: right_pairs(length - 1, first, last, longest)),
        "From first to last there are `last - first + 1` tokens: the + 1 is missing.")
mistake("span-or-none", searched(lambda length, first, last, longest: right_pairs(length, first, last, longest) & (length > 1)),
        "A single token can be an answer: first = last.")
mistake("span-or-none", searched(lambda length, first, last, longest: right_pairs(length, first, last, longest - 1)),
        "One token too short: a span of exactly `longest` tokens is allowed.")
for end in (0, 1):
    mistake("span-or-none", searched(lambda length, first, last, longest, end=end: (
                (length >= 1) & (length <= longest) & (first, last)[end])),
            "One end of your answer may be outside the context. *Both* must be where `context` is True.")
mistake("span-or-none", searched(right_pairs, lambda start, end: start[:, None] + 0 * end[None, :]),
        "Only the scores of the start count. Add those of the end.")
mistake("span-or-none", searched(right_pairs, lambda start, end: 0 * start[:, None] + end[None, :]),
        "Only the scores of the end count. Add those of the start.")
mistake("span-or-none", searched(right_pairs, forbidden=0.0),
        "Pairs that are not allowed get the score 0, which wins where all sums are negative. Give them −∞.")
mistake("span-or-none", searched(right_pairs, answers=lambda best, none, threshold: best < none + threshold),
        "The comparison is the wrong way around: you answer where the best sum is too *low*.")
mistake("span-or-none", searched(right_pairs, answers=lambda best, none, threshold: best >= none + threshold),
        "A sum that is exactly `threshold` higher is not enough. It must be *more*.")


def half_of_none(which):
    def answer(start, end, context, longest, threshold):
        other = (start, end)[1 - which].clone()
        other[0] = 0.0
        pair = (start, other) if which == 0 else (other, end)
        return span_or_none(*pair, context, longest, threshold)
    return answer


for which in (0, 1):
    mistake("span-or-none", half_of_none(which),
            "\"No answer\" has two scores, like every pair: compare with `start[0] + end[0]`.")
alternative("span-or-none", by_loops)

# %% [markdown]
# ### Task 3 · What has read everything   ●●○○○ · 8 minutes · 2 points
#
# A classifier on a GPT reads the vector of the last *real* token, the only one that has seen the whole text. Batches are
# padded, on the right, on the left, or on both sides of a row. `attention_mask` is 1 for real tokens and 0 for padding;
# there is no padding between two real tokens.
# Return that vector for each row. Every row has at least one real token.
#
# <details><summary>Hint 1: where is the last 1?</summary>
#
# Not always at `attention_mask.sum(1) - 1`: that holds only if all padding is on the right.
# </details>
# <details><summary>Hint 2: number the positions</summary>
#
# `torch.arange(n) * attention_mask` is 0 at padding. Where is its largest value?
# </details>
# <details><summary>Hint 3: one vector per row</summary>
#
# `hidden[torch.arange(batch), last]`, with `last` (batch,).
# </details>

# %% nbgrader={"grade_id": "last-real", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def last_real(
    hidden: Float[Tensor, "batch n d_model"], attention_mask: Int[Tensor, "batch n"]
) -> Float[Tensor, "batch d_model"]:
    """The vector of each row's last real token."""
    ### BEGIN SOLUTION
    last = (torch.arange(hidden.shape[1]) * attention_mask).argmax(dim=1)        # (batch,)
    return hidden[torch.arange(len(hidden)), last]
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-last-real", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("last-real") as show:
    n = show.random_size(7, 10)
    place = torch.arange(n)
    lengths = show.randint(1, n, 4)
    show(last_real(show.randn(4, n, 3), (place < lengths[:, None]).long()), f"padding on the right, n = {n}")
    show(last_real(show.randn(4, n, 3), (place >= lengths[:, None]).long()), f"padding on the left, n = {n}")
    both = ((place >= 2) & (place < n - 1 - lengths[:, None] % 3)).long()
    show(last_real(show.randn(4, n, 3), both), f"padding on both sides, n = {n}")
    show(last_real(show.randn(2, n, 3), torch.ones(2, n, dtype=torch.long)), f"no padding, n = {n}")

# %% tags=["mistakes"]
def reading(place):
    return lambda hidden, mask: hidden[torch.arange(len(hidden)), place(hidden, mask)]


def mean_of_real(hidden, mask):
    return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


mistake("last-real", lambda hidden, mask: hidden[:, -1],
        "You read the last position, which may be padding. Read the last *real* token.")
mistake("last-real", reading(lambda hidden, mask: mask.sum(1) - 1),
        "You count the real tokens. With padding on the left, the last one is not at position `sum - 1`.")
mistake("last-real", reading(lambda hidden, mask: mask.sum(1).clamp(max=hidden.shape[1] - 1)),
        "One position too far: if a row begins with its k real tokens, the last one is at position k − 1.")
mistake("last-real", reading(lambda hidden, mask: mask.argmax(1)),
        "This is the *first* real token: it has seen nothing but itself.")
mistake("last-real", lambda hidden, mask: hidden[:, 0],
        "This is the first position, `[CLS]` in a BERT. In a GPT it has seen nothing but itself.")
mistake("last-real", mean_of_real,
        "This is the mean of all real tokens. Return the vector of the last one, which has seen the others.")
mistake("last-real", lambda hidden, mask: last_real(hidden, mask)[:, None],
        "There is one axis too many: return one vector per row, (batch, d_model).")
alternative("last-real", reading(lambda hidden, mask: hidden.shape[1] - 1 - mask.flip(1).argmax(1)))
alternative("last-real", lambda hidden, mask: torch.stack([row[real.bool()][-1] for row, real in zip(hidden, mask)]))

equivalent("last-real", "torch.arange(hidden.shape[1]) → torch.arange(1, hidden.shape[1] + 1)",
           "If only the first token is real, all numbers may be 0 as well: `argmax` takes the first.")

# %% tags=["variant"]
from txgrade import variant

REACH = variant(3, 2, 4, 5)  # how far task 4 looks

# %% [markdown]
# ### Task 4 · Find the offset heads   ●●●●○ · 13 minutes · 3 points
#
# A head with offset $-1$ looks at the token before, one with $+1$ at the token after: an offset is the key's position minus
# the query's. You get the weights of several heads on one text. Find each head's strongest offset among
# $-{{REACH}} \dots {{REACH}}$: the one with the largest *mean* weight over all queries *that have such a key*. The first token has
# no token before it, so it must not count for $-1$.
#
# Return the offsets (int64) and their mean weights.
#
# <details><summary>Hint 1: where are these weights?</summary>
#
# On a diagonal: `weight.diagonal(offset, dim1=-2, dim2=-1)` has the entries with key − query = offset, n − |offset| of
# them.
# </details>
# <details><summary>Hint 2: all offsets</summary>
#
# Take the mean of each of these diagonals, and stack them: (heads, offsets).
# </details>
# <details><summary>Hint 3: which one?</summary>
#
# `max(dim=-1)` gives the largest mean and its index, counted from 0. The offset is that index minus {{REACH}}.
# </details>

# %% nbgrader={"grade_id": "find-offset", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def find_offset(weight: Float[Tensor, "heads n n"]) -> tuple[Int[Tensor, "heads"], Float[Tensor, "heads"]]:
    """Each head's strongest offset among -{{REACH}} … {{REACH}}, and its mean weight. n is greater than {{REACH}}."""
    ### BEGIN SOLUTION
    means = [weight.diagonal(offset, dim1=-2, dim2=-1).mean(dim=-1) for offset in range(-REACH, REACH + 1)]
    strength, index = torch.stack(means, dim=-1).max(dim=-1)       # (heads,) each
    return index - REACH, strength
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-find-offset", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("find-offset") as show:
    n = show.random_size(7, 10)
    query, key = torch.arange(n)[:, None], torch.arange(n)[None, :]
    clear = torch.stack([3.0 * (key - query == offset) for offset in (-REACH, -1, 0, REACH - 1, REACH)])
    show(find_offset((clear + 0.3 * show.randn(5, n, n)).softmax(dim=-1)), f"five heads with a clear offset, n = {n}")
    show(find_offset((1.5 * show.randn(12, n, n)).softmax(dim=-1)), f"twelve untrained heads, n = {n}")
    show(find_offset((2 * show.randn(6, REACH + 1, REACH + 1)).softmax(dim=-1)), f"six untrained heads, n = {REACH + 1}")

# %% tags=["mistakes"]
def offsets(mean, low=-REACH, high=REACH, turn=1):
    """A search where `mean(weight, offset)` gives the strength of an offset."""
    def answer(weight):
        strength, place = torch.stack([mean(weight, offset) for offset in range(low, high + 1)], dim=-1).max(dim=-1)
        return turn * (place + low), strength
    return answer


def along(weight, offset):
    return weight.diagonal(offset, dim1=-2, dim2=-1)


def not_itself(weight):
    means = torch.stack([along(weight, offset).mean(dim=-1) for offset in range(-REACH, REACH + 1)], dim=-1)
    means[:, REACH] = float("-inf")
    strength, place = means.max(dim=-1)
    return place - REACH, strength


def of_winners(weight):
    n = weight.shape[-1]
    offset = (weight.argmax(dim=-1) - torch.arange(n)).clamp(-REACH, REACH).mode(dim=-1).values
    return offset, torch.stack([along(w, int(o)).mean() for w, o in zip(weight, offset)])


mistake("find-offset", offsets(lambda weight, offset: along(weight, offset).sum(dim=-1) / weight.shape[-1]),
        "You divide by n. The diagonal of offset o has n − |o| entries: queries without such a key must not count.")
mistake("find-offset", offsets(lambda weight, offset: along(weight, offset).sum(dim=-1)),
        "You compare sums, so long diagonals win by their length. Take means.")
mistake("find-offset", offsets(lambda weight, offset: along(weight.transpose(-2, -1), offset).mean(dim=-1)),
        "The sign is wrong. The offset is key minus query: looking at the token before is −1.")
mistake("find-offset", offsets(lambda weight, offset: along(weight, offset).amax(dim=-1)),
        "You take the largest single weight of each diagonal. One lucky token is no habit: take the mean.")
mistake("find-offset", offsets(lambda weight, offset: along(weight, offset).mean(dim=-1), low=0),
        "Offsets to the left are missing. Search −{{REACH}} to {{REACH}}.")
mistake("find-offset", offsets(lambda weight, offset: along(weight, offset).mean(dim=-1), high=0),
        "Offsets to the right are missing. In BERT a head can look ahead: search −{{REACH}} to {{REACH}}.")
mistake("find-offset", offsets(lambda weight, offset: along(weight, offset).mean(dim=-1), high=REACH - 1),
        f"Offset {REACH} is missing. `range(-{REACH}, {REACH})` ends at {REACH - 1}: write `range(-{REACH}, {REACH + 1})`.")
mistake("find-offset", not_itself, "Offset 0 is missing: a head may look at the token itself.")
mistake("find-offset", lambda weight: (find_offset(weight)[0] + REACH, find_offset(weight)[1]),
        "This is the index in the list, counted from 0. Subtract {{REACH}} to get the offset.")
mistake("find-offset", of_winners,
        "You count where each query has its largest weight. Find the largest *mean weight*: a head can put 40% on the token "
        "before every time, and yet more on another token.")
mistake("find-offset", offsets(lambda weight, offset: torch.stack([
            weight[:, q, (q + offset) % weight.shape[-1]] for q in range(weight.shape[-1])]).mean(dim=0)),
        "Your positions wrap around: for offset −1 the first query looks at the *last* token. Queries without such a key must "
        "not count.")


def by_distance(weight):
    n = weight.shape[-1]
    distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]
    means = torch.stack([weight[:, distance == offset].mean(dim=-1) for offset in range(-REACH, REACH + 1)], dim=-1)
    return means.argmax(dim=-1) - REACH, means.amax(dim=-1)


alternative("find-offset", by_distance)

# %% [markdown]
# ### Task 5 · Investigate: which layer knows?   ●●●●○ · 20 minutes · 4 points
#
# An open task, as in Table 7 of BERT's paper. An encoder is frozen, and you have the vector that *each* of its layers makes
# of 120 labeled texts. Some layers know the label and others do not, and their vectors differ in scale; which is which is
# secret, and differs from encoder to encoder. Return one linear layer on all of them, that is on `features.flatten(1)`,
# with two outputs. For layers that you don't want to use, set its weights to 0.
#
# The grader measures the accuracy on 4,000 new texts of the same encoder: all points from 86% on, half of them from 75%
# on. A linear layer trained on all encoder layers as they are gets about 70%.
#
# How you find out is your choice. Hold back some of the 120 texts, and measure on these: single layers, pairs, all; more
# or less weight decay; features brought to one scale. (A column of scale 6 weighs more than one of scale 1.) A few
# seconds of computing are enough.
#
# <details><summary>Hint 1: how to compare fairly?</summary>
#
# *Cross-validation*: divide the texts into five parts, train on four, count what is right on the fifth, five times over.
# </details>
# <details><summary>Hint 2: a classifier without a loop</summary>
#
# Least squares on the targets −1 and 1, with decay λ: $w = (X^\top X + \lambda I)^{-1} X^\top y$ on centered
# columns, with `torch.linalg.solve`.
# </details>
# <details><summary>Hint 3: back into one layer</summary>
#
# `probe = nn.Linear(layers * width, 2)`. Logits −s/2 and s/2 for a score s: set `probe.weight.data` and `probe.bias.data`.
# </details>

# %%
LAYERS, WIDTH = 6, 24


def an_encoder(private):
    """A secret: the layer that knows most, and the direction in which each layer would tell the label, (layers, width)."""
    knows, directions = private.random_size(1, 4), private.randn(LAYERS, WIDTH)
    return knows, directions / directions.norm(dim=-1, keepdim=True)


def labeled_texts(private, encoder, count):
    """What each layer says about `count` texts, and their labels."""
    knows, directions = encoder
    labels, features = private.randint(0, 2, count), private.randn(count, LAYERS, WIDTH)
    for layer in range(LAYERS):
        distance = abs(layer - knows)
        strength = {0: 1.6, 1: 0.5}.get(distance, 0.0)             # its neighbors know a little
        features[:, layer] += strength * (2 * labels - 1)[:, None] * directions[layer]
        features[:, layer] *= 1 + distance
    return features, labels


# %% nbgrader={"grade_id": "pick-layer", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def pick_layer(features: Float[Tensor, "texts layers width"], labels: Int[Tensor, "texts"]) -> nn.Linear:
    """A probe from layers * width numbers to two logits."""
    ### BEGIN SOLUTION
    def fit(x, y, decay):                                          # (texts, width), (texts,)
        middle, eye = x.mean(dim=0), torch.eye(x.shape[1])
        scale = x.std()
        x = (x - middle) / scale
        w = torch.linalg.solve(x.T @ x + decay * len(x) * eye, x.T @ (2.0 * y - 1)) / scale
        return w, -(middle @ w)

    tries = []
    for layer in range(features.shape[1]):
        for decay in (0.03, 0.3, 3.0):
            hits = 0
            for fold in range(5):
                test = torch.arange(len(labels)) % 5 == fold
                w, b = fit(features[~test, layer], labels[~test], decay)
                hits += int(((features[test, layer] @ w + b > 0) == (labels[test] == 1)).sum())
            tries.append((hits, layer, decay))
    _, layer, decay = max(tries)
    w, b = fit(features[:, layer], labels, decay)
    probe = nn.Linear(features[0].numel(), 2)
    weight = torch.zeros(features.shape[1:])                       # (layers, width)
    weight[layer] = w
    probe.weight.data = torch.stack([-weight.flatten(), weight.flatten()]) / 2
    probe.bias.data = torch.stack([-b, b]) / 2
    return probe
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-pick-layer", "grade": true, "points": 4, "solution": false, "locked": true, "schema_version": 3}
with check("pick-layer", operators=False) as show:
    features, labels = show.private(lambda private: labeled_texts(private, an_encoder(private), 120))
    show.weights(pick_layer(features, labels), "the probe")

# %% tags=["mistakes"]
@torch.no_grad()
def on_new_texts(shown, private):
    probe = nn.Linear(LAYERS * WIDTH, 2)
    probe.load_state_dict(shown[0])
    encoder = an_encoder(private)
    labeled_texts(private, encoder, 120)                          # those that the answer has seen
    features, labels = labeled_texts(private, encoder, 4000)
    right = float((probe(features.flatten(1)).argmax(dim=1) == labels).float().mean())
    return 1 if right >= 0.86 else 0.5 if right >= 0.75 else 0, f"{right:.1%} of 4,000 new texts are labeled correctly."


def on_layers(chosen, turn=1):
    """Least squares on these layers, as they are."""
    def answer(features, labels):
        kept = torch.zeros_like(features)
        kept[:, chosen] = features[:, chosen]
        x = kept.flatten(1)
        w = torch.linalg.solve(x.T @ x + 0.01 * torch.eye(x.shape[1]), x.T @ (2.0 * labels - 1))
        probe = nn.Linear(len(w), 2)
        probe.weight.data, probe.bias.data = turn * torch.stack([-w, w]), torch.zeros(2)
        return probe
    return answer


measured("pick-layer", on_new_texts)
mistake("pick-layer", on_layers(slice(None)),
        "You use all layers as they are: with 144 numbers for 120 texts the probe memorizes the texts.")
mistake("pick-layer", on_layers([5]), "You use the last layer without measuring. It need not be the one that knows.")
mistake("pick-layer", on_layers([0]), "You use the first layer without measuring. It need not be the one that knows.")
mistake("pick-layer", lambda features, labels: nn.Linear(features[0].numel(), 2), "The probe is returned untrained.")


def trained_by_steps(features, labels):
    best, found = -1, None
    for layer in range(features.shape[1]):
        kept = torch.zeros_like(features)
        kept[:, layer] = features[:, layer] / features[:, layer].std()
        x, hits = kept.flatten(1), 0
        for test in (*(torch.arange(len(labels)) % 4 == fold for fold in range(4)), torch.zeros(len(labels)).bool()):
            probe = nn.Linear(x.shape[1], 2)
            nn.init.zeros_(probe.weight)
            optimizer = torch.optim.AdamW(probe.parameters(), lr=0.05, weight_decay=0.5)
            for _ in range(60):
                loss = nn.functional.cross_entropy(probe(x[~test]), labels[~test])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            hits += int((probe(x[test]).argmax(dim=1) == labels[test]).sum())
        if hits > best:
            probe.weight.data /= features[:, layer].std()
            best, found = hits, probe
    return found


alternative("pick-layer", trained_by_steps)

# %% [markdown]
# ### Task 6 · Any number of choices   ●●●○○ · 11 minutes · 3 points
#
# The lesson's questions have four choices each, so `view(-1, 4)` sorts the scores. In other data sets one question has
# two choices and the next has seven. A batch is still a list of rows, one per choice, question after question:
# `counts` says how many rows each question has, and `scores` has one score per row. `right` is the number of the right
# choice *within its question*, counted from 0, or −100 where nobody knows it.
#
# Return
#
# - the loss: for each question a softmax over its own choices, then the cross-entropy, and the mean over all questions
#   whose answer is known (there is at least one);
# - the choice that the model picks in each question, a list of ints counted from 0, also where the answer is unknown.
#
# With `scores` = (2, 0, 1, 1, 1), `counts` = [2, 3] and `right` = [0, 2] the two losses are 0.127 and 1.099, so the loss
# is 0.613. Scores may be as large as 500. (In the second question all scores are equal; if so, return any of them. The
# checks have no such ties.)
#
# <details><summary>Hint 1: question by question</summary>
#
# `scores.split(counts)` cuts the scores into one tensor per question.
# </details>
# <details><summary>Hint 2: large scores</summary>
#
# `exp(500)` is infinity. `log_softmax` subtracts the largest score first.
# </details>
# <details><summary>Hint 3: the mean</summary>
#
# Divide by the number of questions with a known answer, not by the number of rows.
# </details>

# %% nbgrader={"grade_id": "any-choices", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def choose(scores: Float[Tensor, "rows"], counts: list[int], right: list[int]) -> tuple[Float[Tensor, ""], list[int]]:
    """The loss, and the choice that is picked in each question."""
    ### BEGIN SOLUTION
    questions = scores.split(counts)                               # (choices,) each
    losses = [-own.log_softmax(dim=0)[answer] for own, answer in zip(questions, right) if answer != -100]
    return torch.stack(losses).mean(), [int(own.argmax()) for own in questions]
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-any-choices", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("any-choices") as show:
    def batch(size, unknown=()):
        counts = [2, *show.randint(2, 8, size - 2).tolist(), 7]
        right = [show.random_size(0, count - 1) for count in counts]
        return 2 * show.randn(sum(counts)), counts, [-100 if i in unknown else r for i, r in enumerate(right)]

    for size in (3, 6):
        show(choose(*batch(size)), f"{size} questions, 2 to 7 choices each")
    scores, counts, right = batch(5, unknown=(1, 3))
    show(choose(scores, counts, right), "five questions, two without a known answer")
    show(choose(100 * scores, counts, right), "the same, with large scores")
    show(choose(show.randn(4), [4], [3]), "one question")

# %% tags=["mistakes"]
def chosen(log_p=lambda own, scores: own.log_softmax(dim=0), total=lambda losses, rows, questions: sum(losses) / len(losses),
           pick=lambda own, first: int(own.argmax()), index=lambda answer, count: answer, known=lambda answer: answer != -100,
           picked=lambda answer: True):
    """The function with one part exchanged."""
    def answer(scores, counts, right):
        losses, picks, first = [], [], 0
        for own, r in zip(scores.split(counts), right):
            if known(r):
                losses.append(-log_p(own, scores)[index(r, len(own))])
            if picked(r):
                picks.append(pick(own, first))
            first += len(own)
        return torch.as_tensor(total(losses, first, len(counts))), picks
    return answer


def of_rows(scores, counts, right):
    starts = [sum(counts[:i]) for i in range(len(counts))]
    target = torch.zeros(len(scores))
    for start, r, count in zip(starts, right, counts):
        if r != -100:
            target[start + r] = 1.0
    asked = torch.tensor([r != -100 for r, count in zip(right, counts) for _ in range(count)])
    return nn.functional.binary_cross_entropy_with_logits(scores[asked], target[asked]), choose(scores, counts, right)[1]


mistake("any-choices", chosen(lambda own, scores: own - scores.logsumexp(dim=0)),
        "The softmax runs over the whole batch. The choices of one question compete with each other, not with those of "
        "other questions.")
mistake("any-choices", of_rows,
        "Each row is judged by itself, as right or wrong. The choices of a question compete: one softmax over all of them.")
mistake("any-choices", chosen(lambda own, scores: own.softmax(dim=0)),
        "These are probabilities. The loss is minus the *logarithm* of the right choice's.")
mistake("any-choices", chosen(lambda own, scores: own),
        "These are scores. Make log-probabilities of them first: `log_softmax` over the question's choices.")
mistake("any-choices", chosen(lambda own, scores: (own.exp() / own.exp().sum()).log()),
        "With large scores the exponential is infinite. Use `log_softmax`, which subtracts the largest score first.")
mistake("any-choices", chosen(total=lambda losses, rows, questions: sum(losses)),
        "The losses are added up. Take their mean.")
mistake("any-choices", chosen(total=lambda losses, rows, questions: sum(losses) / rows),
        "You divide by the number of rows. Then a question with many choices counts less: divide by the number of questions.")
mistake("any-choices", chosen(total=lambda losses, rows, questions: sum(losses) / questions),
        "You divide by the number of all questions. Only those with a known answer are in the sum.")
mistake("any-choices", chosen(index=lambda answer, count: max(answer, 0), known=lambda answer: True),
        "Where the answer is −100, nobody knows it. Such a question is not in the loss; yours counts choice 0 as right.")
mistake("any-choices", chosen(index=lambda answer, count: answer if answer >= 0 else count - 1, known=lambda answer: True),
        "Where the answer is −100, nobody knows it. Such a question is not in the loss; yours counts the last choice as right.")
mistake("any-choices", chosen(index=lambda answer, count: (answer + 1) % count),
        "The right choice is counted from 0. You read the one after it.")
mistake("any-choices", chosen(total=lambda losses, rows, questions: -sum(losses) / len(losses)),
        "The sign is wrong: a loss is *minus* the log-probability.")
mistake("any-choices", chosen(pick=lambda own, first: first + int(own.argmax())),
        "The picks count through the whole batch. Count from 0 within each question.")
mistake("any-choices", chosen(pick=lambda own, first: int(own.argmin())),
        "You pick the choice with the *lowest* score. The highest wins.")
mistake("any-choices", chosen(picked=lambda answer: answer != -100),
        "Questions without a known answer have no pick. A model has to choose there as well.")


def padded(scores, counts, right):
    table = torch.full((len(counts), max(counts)), float("-inf"))
    table[torch.arange(max(counts)) < torch.tensor(counts)[:, None]] = scores
    return nn.functional.cross_entropy(table, torch.tensor(right), ignore_index=-100), table.argmax(dim=1).tolist()


alternative("any-choices", padded)
alternative("any-choices", chosen())

# %% [markdown]
# ### Task 7 · Investigate: do both say the same?   ●●●●○ · 15 minutes · 3 points
#
# In the lesson a rule beat the fine-tuned head on sentence pairs. What should a head compute? Here an encoder is frozen,
# and each sentence has been read once, by itself: 20 numbers. Some of them hold the meaning, others are louder and hold
# the style; which ones is secret, and differs from check to check. For 200 pairs `u`, `v` people have said whether both
# mean the same (1) or not (0). Return a score for each new pair, `new_u` and `new_v`: above 0 where you think that both
# mean the same.
#
# The grader measures the share of right answers on 500 new pairs: all points from 88% on, half of them from 72% on.
# Two simple ways fall short: a linear layer on `u` and `v` side by side gets 50%, and the cosine with the best threshold
# about 60%. Think why (hint 1 has the answer), then compute something that a linear layer can use.
#
# <details><summary>Hint 1: why does a linear layer on both fail?</summary>
#
# Its score is a sum of what `u` says and what `v` says. Neither alone says anything about whether they *agree*.
# </details>
# <details><summary>Hint 2: what says whether they agree?</summary>
#
# For each of the 20 numbers the difference of both, without its sign. (The product is another way.) Sentence-BERT
# (lesson 14) was trained with a linear layer on `u`, `v` and such differences.
# </details>
# <details><summary>Hint 3: a classifier without a loop</summary>
#
# Task 5's second hint: least squares on the targets −1 and 1, on centered features.
# </details>

# %%
MEANING, STYLE = 6, 14


def sentence_pairs(private):
    """A secret: 700 pairs, (pair, 20) each, and whether both mean the same, (pair,)."""
    order = private.permutation(MEANING + STYLE)
    same, shared = private.randint(0, 2, 700), private.randn(700, MEANING)
    sides = []
    for _ in range(2):
        other = private.randn(700, MEANING)
        meaning = torch.where(same[:, None] == 1, shared, other) + 0.3 * private.randn(700, MEANING)
        sides.append(torch.cat([meaning, 2 * private.randn(700, STYLE)], dim=1)[:, order])
    return *sides, same


def given(u, v, labels):
    """What the answer sees: 200 pairs with their labels, 500 without."""
    return u[:200], v[:200], labels[:200], u[200:], v[200:]


# %% nbgrader={"grade_id": "same-meaning", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def same_meaning(
    u: Float[Tensor, "pair 20"],
    v: Float[Tensor, "pair 20"],
    labels: Int[Tensor, "pair"],
    new_u: Float[Tensor, "new 20"],
    new_v: Float[Tensor, "new 20"],
) -> Float[Tensor, "new"]:
    """A score for each new pair, above 0 where both mean the same."""
    ### BEGIN SOLUTION
    x, new = (u - v).abs(), (new_u - new_v).abs()                  # (pair, 20), (new, 20)
    middle, y = x.mean(dim=0), 2.0 * labels - 1
    x = x - middle
    w = torch.linalg.solve(x.T @ x + 0.1 * len(x) * torch.eye(x.shape[1]), x.T @ (y - y.mean()))
    return (new - middle) @ w + y.mean()
    ### END SOLUTION

# %% [markdown]
# To see how far you are, run this in a cell of your own:
#
# ```python
# from txgrade import Inputs
#
# u, v, labels = sentence_pairs(Inputs(1, "at home"))    # another number makes other pairs
# ((same_meaning(*given(u, v, labels)) > 0) == (labels[200:] == 1)).float().mean()
# ```

# %% nbgrader={"grade_id": "check-same-meaning", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("same-meaning", operators=False) as show:
    u, v, labels, new_u, new_v = show.private(lambda private: given(*sentence_pairs(private)))
    show.weights({"scores": same_meaning(u, v, labels, new_u, new_v)}, "a score for each of 500 new pairs")

# %% tags=["mistakes"]
def on_new_pairs(shown, private):
    scores, same = shown[0]["scores"], sentence_pairs(private)[2][200:]
    if scores.shape != same.shape:
        return 0, f"There should be one score per new pair, {len(same)} in one row; yours have the shape {tuple(scores.shape)}."
    right = float(((scores > 0) == (same == 1)).float().mean())
    return 1 if right >= 0.88 else 0.5 if right >= 0.72 else 0, f"{right:.1%} of 500 new pairs are judged correctly."


def on_features(features, turn=1):
    """Least squares on what `features` computes of a pair."""
    def answer(u, v, labels, new_u, new_v):
        x, new, y = features(u, v), features(new_u, new_v), 2.0 * labels - 1
        middle = x.mean(dim=0)
        w = torch.linalg.solve((x - middle).T @ (x - middle) + 0.1 * len(x) * torch.eye(x.shape[1]), (x - middle).T @ (y - y.mean()))
        return turn * ((new - middle) @ w + y.mean())
    return answer


measured("same-meaning", on_new_pairs)
forbid("same-meaning", ("sentence_pairs", "Inputs"))
mistake("same-meaning", on_features(lambda u, v: torch.cat([u, v], dim=-1)),
        "A linear layer on both vectors side by side adds up what each says alone. It can't tell whether they agree.")
mistake("same-meaning", on_features(lambda u, v: u - v),
        "The difference with its sign is as often positive as negative, for equal meanings and for others. Take its size.")
mistake("same-meaning", on_features(lambda u, v: nn.functional.cosine_similarity(u, v, dim=-1)[:, None]),
        "The cosine adds up all 20 numbers, and the loud ones decide it. Let the labels say which ones count.")
mistake("same-meaning", on_features(lambda u, v: (u - v).abs(), turn=-1),
        "The sign is wrong: a score above 0 says that both mean the same.")
mistake("same-meaning", lambda u, v, labels, new_u, new_v: torch.zeros(len(new_u)), "Every pair has the score 0: nothing was learned.")


def product_and_difference(u, v, labels, new_u, new_v):
    def features(u, v):
        return torch.cat([(u - v).abs(), u * v], dim=-1)

    layer = nn.Linear(2 * u.shape[1], 1)
    nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.02, weight_decay=0.5)
    for _ in range(200):
        loss = nn.functional.binary_cross_entropy_with_logits(layer(features(u, v))[:, 0], labels.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return layer(features(new_u, new_v))[:, 0].detach()


alternative("same-meaning", product_and_difference)

# %%
check.summary()
