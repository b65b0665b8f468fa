"""Conversations to learn from, made by rules from the bundled data: what a user asks, and what an assistant answers.

An example is a list of messages, {"role": "user", "content": "…"} and the assistant's, as `ChatTemplate` takes it. Each
function returns `Splits` of examples with one question each; `instructions` mixes them into conversations.
"""

import random
from collections.abc import Callable, Mapping
from itertools import combinations, pairwise

from txlib.data.chorales import chorales
from txlib.data.files import Splits, split_by
from txlib.data.reviews import reviews
from txlib.data.translation import translation
from txlib.data.verses import verses
from txlib.music.piece import REST, STEPS_PER_QUARTER, VOICES

Conversation = list[dict[str, str]]

HELD_OUT = 10  # percent of the sums, and of the moves of two voices, that go to test, and as many to validation
PHRASE_WORDS, VERSE_WORDS, REVIEW_WORDS = 3, 10, 15  # longest sentence; longer reviews are cut
NOTES = ("C", "C#", "D", "Eb", "E", "F", "F#", "G", "G#", "A", "Bb", "B")
CONSECUTIVE = {7: "Yes, fifths.", 0: "Yes, octaves."}  # by semitones between the voices, without octaves
LONGEST_TALK = 3  # questions of one conversation
HELP = (
    "I add two numbers up to 99 and name a review's stars. I try to translate short phrases, and to put old verses "
    "into new words."
)
SMALL_TALK = (
    ("Hello!", "Hello!"),
    ("Hi", "Hello!"),
    ("Hallo!", "Hallo!"),
    ("Who are you?", "A small language model. " + HELP),
    ("What can you do?", HELP),
    ("Help", HELP),
    ("Thank you!", "You are welcome."),
    ("Danke!", "Gern."),
    ("Bye", "Good bye!"),
)
TIMES = {"sums": 2, "stars": 2, "voices": 3, "small talk": 20}  # that an example is in the mixture, if not once


def exchange(question: str, answer: str) -> Conversation:
    """Return the conversation of one question and its answer."""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def sums() -> Splits:
    """Sums of two numbers from 10 to 99, all 8,100, worked out digit by digit; one and its reverse are in one split."""
    pairs = [(first, second) for first in range(10, 100) for second in range(10, 100)]
    splits = split_by(lambda pair: " ".join(map(str, sorted(pair))), pairs, HELD_OUT)
    return Splits(*([exchange(f"What is {a} + {b}?", work_out(a, b)) for a, b in split] for split in splits))


def work_out(first: int, second: int) -> str:
    """Return a sum of two numbers of two digits, step by step: for 27 and 58 "7 + 8 = 15, 2 + 5 + 1 = 8: 85"."""
    ones, tens = first % 10 + second % 10, f"{first // 10} + {second // 10}"
    carry = ones // 10
    tens += " + 1" if carry else ""
    left = first // 10 + second // 10 + carry
    return f"{first % 10} + {second % 10} = {ones}, {tens} = {left}: {first + second}"


def final_answer(text: str) -> str:
    """Return what an answer comes to, after what led to it."""
    return text.rpartition(": ")[2]


def stars() -> Splits:
    """Clothing reviews, of which the first words are shown, and how many stars they gave: 1 to 5, equally frequent.

    Held-out reviews that begin like one in train are left out.
    """

    def ask(text: str, label: int) -> Conversation:
        shown = " ".join(text.split()[:REVIEW_WORDS])
        return exchange(f"How many stars? {shown}", "1 star" if label == 0 else f"{label + 1} stars")

    splits = Splits(*([ask(*review) for review in split] for split in reviews("stars")))
    seen = {talk[0]["content"] for talk in splits.train}
    for held_out in (splits.validation, splits.test):
        held_out[:] = [talk for talk in held_out if talk[0]["content"] not in seen]
    return splits


def into_english() -> Splits:
    """German phrases of the games, with English of at most three words."""
    pairs = translation("games", "de-en", max_words=PHRASE_WORDS)
    return Splits(*([exchange(f"In English: {other}", english) for other, english in split] for split in pairs))


def into_german() -> Splits:
    """The phrases of `into_english` the other way round, in the same splits."""
    pairs = translation("games", "de-en", max_words=PHRASE_WORDS)
    return Splits(*([exchange(f"In German: {english}", other) for other, english in split] for split in pairs))


def modern_verses() -> Splits:
    """Verses of at most ten words in the English of 1611, to be said in that of today."""
    return Splits(
        *(
            [exchange(f"In new words: {old}", new) for old, new in split if len(old.split()) <= VERSE_WORDS]
            for split in verses()
        )
    )


def voice_leading() -> Splits:
    """A rule of Bach's chorales: do two voices move in fifths, or in octaves?

    The moves from one quarter to the next are Bach's, and as he avoids what is asked for, the upper voice of every move
    is also put a fifth and an octave above the lower one. Each kind of answer is equally frequent. A move of the same
    notes is in one split only, whichever voices sing it.
    """
    moves: dict[tuple[str, tuple[int, int, int, int]], None] = {}
    for piece in (piece for split in chorales() for piece in split):
        quarters = piece.pitch[::STEPS_PER_QUARTER].tolist()
        for before, after in pairwise(quarters):
            for upper, lower in combinations(range(len(VOICES)), 2):
                notes = (before[upper], after[upper], before[lower], after[lower])
                low, high = notes[2] % 12, notes[3] % 12
                if REST in notes or low == high:
                    continue
                names = f"{VOICES[upper].title()} {{}} {{}}, {VOICES[lower]} {{}} {{}}"
                moves[names, (notes[0] % 12, notes[1] % 12, low, high)] = None
                for interval in CONSECUTIVE:
                    moves[names, ((low + interval) % 12, (high + interval) % 12, low, high)] = None
    by_answer: dict[str, list] = {}
    for names, notes in moves:
        by_answer.setdefault(consecutive(*notes), []).append((names, notes))
    rng, least = random.Random(0), min(map(len, by_answer.values()))
    chosen = [move for same in by_answer.values() for move in rng.sample(same, least)]
    rng.shuffle(chosen)

    def ask(names: str, notes: tuple[int, int, int, int]) -> Conversation:
        sung = names.format(*(NOTES[note] for note in notes))
        return exchange(f"Fifths or octaves? {sung}", consecutive(*notes))

    splits = split_by(lambda move: str(move[1]), chosen, HELD_OUT)
    return Splits(*([ask(*move) for move in split] for split in splits))


def consecutive(upper: int, upper_after: int, lower: int, lower_after: int) -> str:
    """Return whether two voices that move from notes to others are a fifth, or an octave, apart before and after."""
    before, after = (upper - lower) % 12, (upper_after - lower_after) % 12
    moves = (upper - upper_after) % 12 and (lower - lower_after) % 12
    return CONSECUTIVE.get(before, "No.") if before == after and moves else "No."


KINDS: Mapping[str, Callable[[], Splits]] = {
    "sums": sums,
    "stars": stars,
    "english": into_english,
    "german": into_german,
    "verses": modern_verses,
    "voices": voice_leading,
}
"""What an assistant is asked, by name."""


def instructions(kinds: Mapping[str, Splits] | None = None, *, seed: int = 0) -> Splits:
    """Return all examples in random order, joined to conversations of up to three questions, as
    `Splits(train, validation, test)`; in train there is some small talk as well.

    Args:
        kinds: the examples by name; all of `KINDS` by default.
        seed: of the order.
    """
    kinds = kinds if kinds is not None else {name: load() for name, load in KINDS.items()}
    rng, mixed = random.Random(seed), Splits([], [], [])
    for part, conversations in zip(Splits._fields, mixed, strict=True):
        repeated = TIMES if part == "train" else {}
        parts = {name: getattr(splits, part) for name, splits in kinds.items()}
        if part == "train":
            parts["small talk"] = [exchange(*words) for words in SMALL_TALK]
        examples = [example for name in parts for example in parts[name] * repeated.get(name, 1)]
        rng.shuffle(examples)
        while examples:
            number = rng.randint(1, LONGEST_TALK)
            conversations.append([message for example in examples[-number:] for message in example])
            del examples[-number:]
    return mixed
