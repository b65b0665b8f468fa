"""What a pre-trained BERT is fine-tuned for: four tasks, each with its head, its labels and its scores."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import txlib.data as data
from txlib.data import BatchDict, Splits, batches_by_length
from txlib.labels import IGNORE_INDEX
from txlib.models.bert import BertForQuestionAnswering, BertForSequenceClassification, BertForTokenClassification
from txlib.models.encoder import Encoder, EncoderConfig, EncoderHead
from txlib.recipes.reading import Encoded, Reader, collate

ANSWER = 30  # tokens of an answer, at most


class Task:
    """What is particular to one task.

    head: the model; sources: its data sets, the default first; about: what the scores mean, for people.
    """

    head: type[EncoderHead]
    sources: tuple[str, ...]
    about: str

    def __init__(self, reader: Reader, splits: Splits):
        self.reader, self.splits = reader, splits

    @staticmethod
    def load(source: str) -> Splits:
        """The data."""
        raise NotImplementedError

    def make(self, config: EncoderConfig, bert: Encoder) -> nn.Module:
        """The model on top of a pre-trained encoder."""
        if not self.head.pooled:
            bert.pooler = None
        return self.head(config, base=bert)

    def encode(self, example: Any) -> Encoded:
        """An example with its labels."""
        raise NotImplementedError

    def answers(self, output: Any, encoded: Sequence[Encoded], examples: Sequence[Any]) -> list[Any]:
        """What the model's output says to each example."""
        raise NotImplementedError

    def baseline(self) -> list[Any]:
        """What one would answer to the test split without reading, from counts in the training split."""
        raise NotImplementedError

    def score(self, answers: Sequence[Any]) -> dict[str, float]:
        """How good answers to the test split are."""
        raise NotImplementedError


class Classification(Task):
    """One of two labels for a text (`reviews`: liked or not) or a pair of texts (`pairs`: the same verse or not)."""

    head = BertForSequenceClassification
    about = "accuracy; the baseline always gives the label that is most frequent in training"

    def encode(self, example: Any) -> Encoded:
        *texts, label = example
        return self.reader.read(*texts)._replace(labels={"labels": label})

    def answers(self, output: Any, encoded: Sequence[Encoded], examples: Sequence[Any]) -> list[int]:
        return output.logits.argmax(dim=-1).tolist()

    def baseline(self) -> list[int]:
        ((label, _),) = Counter(example.label for example in self.splits.train).most_common(1)
        return [label] * len(self.splits.test)

    def score(self, answers: Sequence[int]) -> dict[str, float]:
        right = sum(answer == example.label for answer, example in zip(answers, self.splits.test, strict=True))
        return {"accuracy": right / len(answers)}


class Reviews(Classification):
    """Was the customer content?"""

    sources = ("reviews",)

    @staticmethod
    def load(source: str) -> Splits:
        return data.reviews()


class Pairs(Classification):
    """Is the second verse the first one in today's English?"""

    sources = ("verses",)

    @staticmethod
    def load(source: str) -> Splits:
        return data.sentence_pairs()


class Spans(Task):
    """Where in the context the answer stands. Answers are compared as words in small letters (Rajpurkar et al. 2016,
    §6.1), without the articles and punctuation around them.
    """

    head = BertForQuestionAnswering
    sources = ("shakespeare", "xquad")
    about = "the baseline gives the place that answers have most often in training"

    @staticmethod
    def load(source: str) -> Splits:
        return data.spans(source)

    def encode(self, example: data.Question) -> Encoded:
        read = self.reader.read(example.question, example.context)
        start, end = example.start, example.start + len(example.answer)
        inside = {
            number: offset
            for number, offset in enumerate(read.offsets)
            if offset is not None and offset[0] < end and offset[1] > start
        }
        whole = any(offset[1] >= end for offset in inside.values())  # else it was cut off
        first, last = (min(inside), max(inside)) if whole else (IGNORE_INDEX, IGNORE_INDEX)
        return read._replace(labels={"start_positions": first, "end_positions": last})

    def answers(self, output: Any, encoded: Sequence[Encoded], examples: Sequence[data.Question]) -> list[str]:
        starts, ends = output.start_logits.float(), output.end_logits.float()  # (batch, length)
        possible = torch.ones(starts.shape[1], starts.shape[1], device=starts.device).triu().tril(ANSWER - 1).bool()
        results = []
        for start, stop, one, example in zip(starts, ends, encoded, examples, strict=True):
            of_context = torch.tensor([offset is not None for offset in one.offsets], device=starts.device)
            length = len(of_context)
            allowed = possible[:length, :length] & of_context[:, None] & of_context  # (start, end)
            score = (start[:length, None] + stop[:length]).masked_fill(~allowed, -torch.inf)
            first, last = divmod(int(score.argmax()), length)
            begin, end = one.offsets[first], one.offsets[last]
            assert begin is not None and end is not None, "of the context, since allowed"
            results.append(example.context[begin[0] : end[1]])
        return results

    def baseline(self) -> list[str]:
        offsets = Counter((example.start, example.start + len(example.answer)) for example in self.splits.train)
        (((start, end), _),) = offsets.most_common(1)
        return [example.context[start:end] for example in self.splits.test]

    def score(self, answers: Sequence[str]) -> dict[str, float]:
        pairs = [
            (words(answer), words(example.answer)) for answer, example in zip(answers, self.splits.test, strict=True)
        ]
        exact = sum(predicted == reference for predicted, reference in pairs)
        return {"exact_match": exact / len(pairs), "f1": sum(overlap(*pair) for pair in pairs) / len(pairs)}


def words(text: str) -> list[str]:
    """The words of an answer, as SQuAD compares them."""
    kept = "".join(character for character in text.lower() if character.isalnum() or character.isspace())
    return [word for word in kept.split() if word not in ("a", "an", "the")]


def overlap(predicted: Sequence[str], reference: Sequence[str]) -> float:
    """F1 of two bags of words: 1 where they are the same, 0 where they share none."""
    shared = (Counter(predicted) & Counter(reference)).total()
    return 2 * shared / (len(predicted) + len(reference)) if predicted or reference else 1.0


class Tags(Task):
    """The kind of name that each word belongs to, or none. A name counts as found where its first word, its last word
    and its kind are right (Tjong Kim Sang & De Meulder 2003, §2.3). A word has the tag of its first token.
    """

    head = BertForTokenClassification
    sources = ("shakespeare", "wikigold")
    about = "names found; the baseline gives each word the tag that it has most often in training"

    def __init__(self, reader: Reader, splits: Splits):
        super().__init__(reader, splits)
        self.names = sorted({tag for example in splits.train for tag in example.tags})
        self.numbers = {name: number for number, name in enumerate(self.names)}

    @staticmethod
    def load(source: str) -> Splits:
        return data.tags(source)

    def make(self, config: EncoderConfig, bert: Encoder) -> nn.Module:
        bert.pooler = None
        return self.head(config, labels=len(self.names), base=bert)

    def encode(self, example: data.Tagged) -> Encoded:
        read = self.reader.read(" ".join(example.words))
        labels = [IGNORE_INDEX] * len(read.ids)
        for number, word in first_tokens(read, example).items():
            labels[number] = self.numbers.get(example.tags[word], IGNORE_INDEX)
        return read._replace(labels={"labels": labels})

    def answers(self, output: Any, encoded: Sequence[Encoded], examples: Sequence[data.Tagged]) -> list[list[str]]:
        results = []
        for best, one, example in zip(output.logits.argmax(dim=-1).tolist(), encoded, examples, strict=True):
            tags = ["O"] * len(example.words)  # what was cut off stays without a name
            for number, word in first_tokens(one, example).items():
                tags[word] = self.names[best[number]]
            results.append(tags)
        return results

    def baseline(self) -> list[list[str]]:
        seen: dict[str, Counter] = defaultdict(Counter)
        for example in self.splits.train:
            for word, tag in zip(example.words, example.tags, strict=True):
                seen[word][tag] += 1
        return [
            [seen[word].most_common(1)[0][0] if word in seen else "O" for word in example.words]
            for example in self.splits.test
        ]

    def score(self, answers: Sequence[Sequence[str]]) -> dict[str, float]:
        predicted = {(number, *name) for number, tags in enumerate(answers) for name in named(tags)}
        true = {(number, *name) for number, example in enumerate(self.splits.test) for name in named(example.tags)}
        right = len(predicted & true)
        precision, recall = right / max(len(predicted), 1), right / max(len(true), 1)
        return {"precision": precision, "recall": recall, "f1": 2 * right / max(len(predicted) + len(true), 1)}


def first_tokens(encoded: Encoded, example: data.Tagged) -> dict[int, int]:
    """Which token is the first of which word, in " ".join(words)."""
    begins, position = {}, 0
    for number, word in enumerate(example.words):
        begins[position] = number
        position += len(word) + 1
    return {
        number: begins[offset[0]]
        for number, offset in enumerate(encoded.offsets)
        if offset is not None and offset[0] < offset[1] and offset[0] in begins
    }


def named(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return the runs of words with the same tag: first word, the word after the last, tag."""
    runs, start = [], 0
    for end in range(1, len(tags) + 1):
        if end == len(tags) or tags[end] != tags[start]:
            if tags[start] != "O":
                runs.append((start, end, tags[start]))
            start = end
    return runs


TASKS: dict[str, type[Task]] = {"reviews": Reviews, "pairs": Pairs, "spans": Spans, "tags": Tags}


def head_loss(model: nn.Module, batch: BatchDict) -> tuple[Tensor, Tensor]:
    """The loss that `train` wants, from the mean that a head gives."""
    labels = batch["labels"] if "labels" in batch else batch["start_positions"]
    count = (labels != IGNORE_INDEX).sum()
    return model(**batch).loss * count, count


@torch.no_grad()
def answer(
    model: nn.Module,
    task: Task,
    examples: Sequence[Any],
    *,
    max_tokens: int = 4_000,
    show: Callable[[Sequence, str], Iterable] = lambda batches, what: batches,
) -> list[Any]:
    """What a model answers to examples, in their order; `show` goes through the batches and shows how far it is."""
    model.eval()
    device = next(model.parameters()).device
    encoded = [task.encode(example) for example in examples]
    lengths = [len(one.ids) for one in encoded]
    results: list[Any] = [None] * len(examples)
    groups = batches_by_length(lengths, max(max_tokens, task.reader.longest), shuffle=False)
    for group in show(groups, "answering"):
        batch = [encoded[index] for index in group]
        inputs = collate([one._replace(labels={}) for one in batch], task.reader.padding).to(device)
        answers = task.answers(model(**inputs), batch, [examples[index] for index in group])
        for index, answer in zip(group, answers, strict=True):
            results[index] = answer
    return results
