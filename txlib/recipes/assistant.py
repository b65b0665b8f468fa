"""The assistant's recipe: bytes in, a small model to talk to out, in three stages.

First it learns to write, from all text that is bundled; then to answer, from conversations, of which only what the
assistant says counts; then from rewards: it answers questions whose answers a rule can check, and what is right becomes
likelier (GRPO: Shao et al. 2024). Each stage is a recipe of its own, and begins with the weights of the one before.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from txlib.data import BatchDict, LazyDataset, Splits, Texts, batches_by_length, pad, translation
from txlib.data.instructions import KINDS, Conversation, final_answer, instructions
from txlib.data.pretraining import corpus
from txlib.generation import GenerationConfig, generate
from txlib.labels import IGNORE_INDEX
from txlib.models import GPT, GPTConfig
from txlib.paths import optional_package
from txlib.posttraining import PolicyConfig, check_rewards, rollout_loss, write_answers
from txlib.recipes.language import bits_per_byte, labeled_loss, llama, validation_loss, window_batches, window_loss
from txlib.recipes.recipe import Preset, Recipe, Show, option
from txlib.text import BytePairEncoder, Tokenizer
from txlib.text.chat import ChatTemplate
from txlib.training import Progress, TrainConfig
from txlib.training.distributed import full_tensor, is_sharded

MARKS = ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
CHECKED = ("sums", "voices")  # kinds of questions whose answers earn rewards
CLOSED = ("sums", "stars", "voices")  # that have one right answer; the others are compared by characters
ASKED = 100  # most questions of a kind in a test
ANSWERING, ANSWERED_TOGETHER = GenerationConfig(max_new_tokens=36), 50
DRAWING = replace(ANSWERING, do_sample=True, seed=0)  # at temperature 1, as for rewards
POLICY = PolicyConfig(group=8, max_new_tokens=36)
PROMPTS_PER_STEP = 8
WINDOWS = 3  # of a text, in a context: conversations are shorter than that, mostly
STEPS_PER_EPOCH = 50  # of rewards: an epoch is a number of draws, not a pass over the prompts

_TRAINING = TrainConfig(precision="auto", lr=3e-3, muon_lr=0.02, warmup=40, checkpoint_every=100, validate_every=200)

PRESETS: dict[str, Preset] = {
    "tiny": Preset(
        block=llama(128, 4, 344),
        layers=6,
        vocab_size=2_048,
        batch_size=2_048,
        context=384,
        training=_TRAINING,
        minutes=80.0,
    ),
    "small": Preset(
        block=llama(384, 6, 1024, 0.1),
        layers=8,
        vocab_size=4_096,
        batch_size=32_768,
        context=512,
        training=replace(_TRAINING, warmup=100),
        minutes=80.0,
    ),
}
"""`tiny` (1.4 million parameters) is for an evening on one core, as the bundled assistant had it; `small` (16 million)
is for a GPU."""


class Material(NamedTuple):
    """What an assistant learns from: texts, and questions with their answers by kind."""

    texts: Texts
    kinds: dict[str, Splits]


class Stage(Recipe[Material, GPT]):
    """What the stages have in common: data, tokenizer, model, and the questions that measure it."""

    presets = PRESETS
    share: ClassVar[float]  # of the minutes

    preset: str = option("tiny", "Size: tiny; small for a GPU.")

    @property
    def folder_name(self) -> str:
        return f"{self.command.partition(' ')[2]}-{self.preset}"

    @property
    def default_minutes(self) -> float:
        return self.share * self.chosen.minutes

    def load(self) -> Material:
        return material()

    def make_tokenizer(self, splits: Material) -> Tokenizer:
        without_digits = re.sub(r"\d", " ", splits.texts.train)  # so that each digit is a token
        return Tokenizer.of(BytePairEncoder.train([without_digits], self.chosen.vocab_size, MARKS))

    def make_model(self, splits: Material, tokenizer: Tokenizer) -> GPT:
        preset, end = self.chosen, ChatTemplate(tokenizer).end_id
        return GPT(GPTConfig(len(tokenizer), preset.block, preset.layers, max_length=preset.context, eos_id=end))

    def loss(self, model: GPT, batch: BatchDict) -> tuple[Tensor, Tensor]:
        return labeled_loss(model, batch["input_ids"], batch["labels"])

    def measure(self, model: GPT, splits: Material, tokenizer: Tokenizer, loss: float, show: Show) -> dict[str, Any]:
        template = ChatTemplate(tokenizer)
        exact: dict[str, float] = {}
        drawn: dict[str, float] = {}
        usual: dict[str, float] = {}
        similar: dict[str, float] = {}
        copied: dict[str, float] = {}
        known: dict[str, float] = {}
        examples: dict[str, list[str]] = {}
        for kind in show(list(splits.kinds), "asking"):
            questions, right = zip(*(contents(talk) for talk in sample(splits.kinds[kind].test)), strict=True)
            train, answers = splits.kinds[kind].train, answer(model, template, questions)
            exact[kind] = right_share(answers, right)
            examples[kind] = [questions[0], answers[0], right[0]]
            if kind in CHECKED:
                drawn[kind] = right_share(answer(model, template, questions, DRAWING), right)
            if kind in CLOSED:
                commonest = Counter(talk[1]["content"] for talk in train).most_common(1)[0][0]
                usual[kind] = right_share([commonest] * len(right), right)
            else:
                similar[kind] = chrf(answers, right)
                copied[kind] = chrf([question.partition(": ")[2] for question in questions], right)
                known[kind] = chrf(nearest(questions, train), right)
        return {
            "exact": exact,
            "exact_drawn": drawn,
            "exact_baseline": usual,
            "chrf": similar,
            "chrf_baseline_copied": copied,
            "chrf_baseline_nearest": known,
            "examples": examples,
        }

    def save(self, model: GPT, tokenizer: Tokenizer, folder: Path) -> None:
        super().save(model, tokenizer, folder)
        ChatTemplate(tokenizer).save(folder)

    def report(self, result: Mapping[str, Any], out: str) -> str:
        return f"Talk with it: txlib chat --model {out}"


class Text(Stage):
    """Train the first stage of an assistant: a language model of all text that is bundled."""

    command = "train assistant-text"
    share = 0.3

    def make_batches(
        self, splits: Material, tokenizer: Tokenizer, part: str = "train"
    ) -> Callable[[int], Sequence[Tensor]]:
        window = self.chosen.context // WINDOWS
        ids = torch.tensor(tokenizer.encode(getattr(splits.texts, part)))
        return window_batches(ids, window, self.chosen.batch_size // window, seed=self.seed)

    def inputs(self, batch: Tensor) -> dict[str, Tensor]:
        return {"input_ids": batch[:, :-1]}

    def loss(self, model: GPT, batch: Any) -> tuple[Tensor, Tensor]:
        return window_loss(model, batch)

    def make_validation(self, splits: Material, tokenizer: Tokenizer) -> Callable[[GPT], float]:
        ids = torch.tensor(tokenizer.encode(splits.texts.validation))
        return lambda model: validation_loss(model, ids, self.chosen.context // WINDOWS)

    def measure(self, model: GPT, splits: Material, tokenizer: Tokenizer, loss: float, show: Show) -> dict[str, Any]:
        bits = bits_per_byte(loss, tokenizer.encode(splits.texts.validation), tokenizer)
        return {"bits_per_byte": bits} | super().measure(model, splits, tokenizer, loss, show)


class Instructions(Stage):
    """Train the second stage of an assistant: it learns to answer, from conversations."""

    command = "train assistant-instructions"
    share = 0.55

    def make_batches(
        self, splits: Material, tokenizer: Tokenizer, part: str = "train"
    ) -> Callable[[int], Sequence[BatchDict]]:
        template, context = ChatTemplate(tokenizer), self.chosen.context
        talks = getattr(instructions(splits.kinds, seed=self.seed), part)
        encoded = [example for example in map(template.encode_example, talks) if len(example[0]) <= context]
        lengths = [len(ids) for ids, _ in encoded]

        def collate(group: Sequence[int]) -> BatchDict:
            ids, labels = zip(*(encoded[index] for index in group), strict=True)
            return BatchDict(input_ids=pad(ids, 0), labels=pad(labels, IGNORE_INDEX))

        def batches(epoch: int) -> Sequence[BatchDict]:
            groups = batches_by_length(lengths, self.chosen.batch_size, seed=self.seed, epoch=epoch)
            return LazyDataset(groups, collate)

        return batches


class Rewards(Stage):
    """Train the third stage of an assistant: it answers, and what a rule finds right becomes likelier."""

    command = "train assistant-rewards"
    share = 0.15

    @property
    def training(self) -> TrainConfig:
        return replace(super().training, lr=3e-4, muon_lr=None, warmup=10)

    def make_batches(
        self, splits: Material, tokenizer: Tokenizer, part: str = "train"
    ) -> Callable[[int], Sequence[BatchDict]]:
        template = ChatTemplate(tokenizer)
        tasks = [  # of each kind
            [(template.encode(talk[:1]), tokenizer.encode(result(talk[1]["content"]))) for talk in talks]
            for talks in (getattr(splits.kinds[kind], part) for kind in CHECKED)
        ]
        rows = PROMPTS_PER_STEP // len(CHECKED)

        def draw(seed: int) -> BatchDict:
            rng = random.Random(seed)
            chosen = [task for same in tasks for task in rng.sample(same, min(rows, len(same)))]
            prompts, answers = zip(*chosen, strict=True)
            lengths = [[len(prompt), len(right)] for prompt, right in zip(prompts, answers, strict=True)]
            return BatchDict(
                prompts=pad(prompts, 0),
                answers=pad(answers, 0),
                lengths=torch.tensor(lengths),
                seeds=torch.arange(seed, seed + len(chosen)),
            )

        def batches(epoch: int) -> Sequence[BatchDict]:
            rng = random.Random(f"{self.seed} {epoch}")
            return LazyDataset([rng.getrandbits(40) for _ in range(STEPS_PER_EPOCH)], draw)

        return batches

    def inputs(self, batch: BatchDict) -> dict[str, Tensor]:
        rows, length = batch["prompts"].shape
        return {"input_ids": torch.zeros(rows * POLICY.group, length + POLICY.max_new_tokens, dtype=torch.long)}

    def loss(self, model: GPT, batch: BatchDict) -> tuple[Tensor, Tensor]:
        """Write answers, and return the loss that makes those likelier that end with the right result.

        Its value is the reward that is missing, on average over the answers, of which its gradient is an estimate.
        """
        right = {}
        for prompt, expected, (length, size) in zip(
            batch["prompts"].tolist(), batch["answers"].tolist(), batch["lengths"].tolist(), strict=True
        ):
            right[tuple(prompt[:length])] = expected[:size]
        with drawing(model) as writer:
            rollouts = write_answers(
                writer,
                list(right),
                lambda prompt, written: float(list(written[-len(right[tuple(prompt)]) :]) == right[tuple(prompt)]),
                POLICY,
                seed=int(batch["seeds"][0]),
            )
        loss, answers = rollout_loss(POLICY)(model, rollouts)
        missing = (1 - rollouts.rewards).sum().to(loss.device)
        return loss - loss.detach() + missing, answers

    def watch(self, progress: Progress) -> None:
        check_rewards([1 - loss for loss in progress.losses])

    def make_validation(self, splits: Material, tokenizer: Tokenizer) -> Callable[[GPT], float]:
        """The share of wrong answers."""
        template = ChatTemplate(tokenizer)
        asked = [talk for kind in CHECKED for talk in sample(splits.kinds[kind].validation)]

        def wrong(model: GPT) -> float:
            answers = answer(model, template, [talk[0]["content"] for talk in asked])
            return 1 - right_share(answers, [talk[1]["content"] for talk in asked])

        return wrong


class Assistant(Stage):
    """Train a small model to talk with in three stages: on text, on conversations, by rewards."""

    command = "train assistant"
    stages = (Text, Instructions, Rewards)
    share = 1.0

    def report(self, result: Mapping[str, Any], out: str) -> str:
        lines = [f"{'stage':13} {'steps':>6} {'CPU s':>6}  " + " ".join(f"{kind:>8}" for kind in KINDS)]
        for name, stage in result["stages"].items():
            costs = f"{name:13} {stage['steps']:6,} {stage['cpu_seconds']:6,.0f}"
            lines.append(f"{costs}  {row(stage['exact'])}")
        lines.append(f"{'the usual answer':28} {row(result['exact_baseline'])}")
        return "\n".join(["Right answers to questions that it has not seen:", *lines, "", super().report(result, out)])


def contents(talk: Conversation) -> tuple[str, str]:
    """Return the question and the answer of an example."""
    return talk[0]["content"], talk[1]["content"]


def row(shares: Mapping[str, float]) -> str:
    """Return the share of each kind as a cell, empty where there is none."""
    return " ".join(f"{shares[kind]:8.0%}" if kind in shares else " " * 8 for kind in KINDS)


def result(text: str) -> str:
    """Return the end of an answer that a reward asks for: from the last colon on, or all."""
    return text[max(text.rfind(":"), 0) :]


def right_share(answers: Sequence[str], right: Sequence[str]) -> float:
    """Return the fraction of answers that come to the same as the right ones."""
    return sum(final_answer(one) == final_answer(other) for one, other in zip(answers, right, strict=True)) / len(right)


@cache
def material() -> Material:
    """Everything that an assistant learns from."""
    return Material(Texts(text_of("train"), text_of("validation"), ""), {name: load() for name, load in KINDS.items()})


def text_of(part: str) -> str:
    """Return the bundled text of a split: verses, plays, reviews, and the games' sentences, German before English."""
    documents = corpus(part)
    lines = [" ".join(sentences) for sentences in documents.pop("reviews")]
    lines += ["\n".join(sentences) for of_source in documents.values() for sentences in of_source]
    lines += ["\n".join(pair) for pair in getattr(translation("games", "de-en"), part)]
    return "\n".join(lines) + "\n"


@contextmanager
def drawing(model: GPT) -> Iterator[GPT]:
    """Yield the model, or a copy with all weights of one that is sharded, to write with in full precision."""
    weights = dict(model.named_parameters())
    device = next(iter(weights.values())).device
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        if any(map(is_sharded, weights.values())):  # ranks write different lengths, but have to gather together
            sharded, model = model, GPT(model.config).to(device)
            model.load_state_dict({name: full_tensor(weight) for name, weight in weights.items()})
            model.train(sharded.training)
        yield model


def answer(
    model: GPT, template: ChatTemplate, questions: Sequence[str], config: GenerationConfig | None = None
) -> list[str]:
    """Return the answer to each question, each a conversation of its own; the likeliest by default."""
    prompts = [template.encode([{"role": "user", "content": question}]) for question in questions]
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    answers = [""] * len(prompts)
    for start in range(0, len(order), ANSWERED_TOGETHER):
        group = order[start : start + ANSWERED_TOGETHER]
        written = generate(model, [prompts[index] for index in group], config=config or ANSWERING)
        for index, ids in zip(group, written, strict=True):
            answers[index] = template.tokenizer.decode(ids)
    return answers


def sample(examples: Sequence[Conversation]) -> list[Conversation]:
    """Return the examples that a test asks: all, or as many as `ASKED`, always the same."""
    return random.Random(0).sample(list(examples), min(ASKED, len(examples)))


def chrf(answers: Sequence[str], right: Sequence[str]) -> float:
    """chrF2, from 0 to 100: how many groups of characters the answers share with the right ones (Popović 2015)."""
    with optional_package():
        from sacrebleu.metrics import CHRF

    return CHRF().corpus_score(list(answers), [list(right)]).score


def nearest(questions: Sequence[str], known: Sequence[Conversation]) -> list[str]:
    """Return for each question the answer to the known one that shares most of its groups of three letters."""

    def trigrams(text: str) -> frozenset[str]:
        return frozenset(text[start : start + 3].lower() for start in range(len(text) - 2))

    table = [(trigrams(talk[0]["content"]), talk[1]["content"]) for talk in known]

    def best(question: str) -> str:
        asked = trigrams(question)
        return max(table, key=lambda entry: len(asked & entry[0]) / max(1, len(asked | entry[0])))[1]

    return [best(question) for question in questions]
