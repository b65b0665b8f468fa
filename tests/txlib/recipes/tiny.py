"""Every recipe with a page of its data and a model of a few thousand weights: six steps take a second."""

import json
import multiprocessing
import os
import tempfile
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import txlib.recipes.assistant as assistant
import txlib.recipes.bert as bert
import txlib.recipes.language as language
import txlib.recipes.music as music
import txlib.recipes.perceiver as perceiver
import txlib.recipes.sets as sets
import txlib.recipes.tasks as tasks
import txlib.recipes.translation as translation
import txlib.recipes.vision as vision
from txlib.data import (
    Splits,
    Texts,
    chorales,
    digits,
    reviews,
    sentence_pairs,
    shakespeare,
    spans,
    tags,
    verses,
)
from txlib.data import translation as sentences
from txlib.data.instructions import KINDS
from txlib.data.pretraining import corpus
from txlib.generation import GenerationConfig
from txlib.layers import BlockConfig
from txlib.models.pretrained import save_pretrained
from txlib.posttraining import PolicyConfig
from txlib.recipes import Preset, Recipe, run
from txlib.recipes.assistant import Assistant, Instructions, Material, Rewards, Text
from txlib.recipes.bert import PreTraining
from txlib.recipes.finetune import FineTuning
from txlib.recipes.language import Language
from txlib.recipes.music import Music
from txlib.recipes.perceiver import Arrays
from txlib.recipes.sets import Sets
from txlib.recipes.translation import Translation
from txlib.recipes.vision import Vision
from txlib.training import TrainConfig, train

forks = pytest.mark.skipif(
    torch.accelerator.is_available(), reason="where there is a GPU, autograd has threads for it, which no fork survives"
)
CONFIG = TrainConfig(lr=0.01, muon_lr=0.02, warmup=3, average=0.9, precision="fp32", checkpoint_every=2)
BLOCK = BlockConfig.of_sizes(
    d_model=16, heads=2, d_ff=32, dropout=0.1, qk_norm="layer", position="rotary_half", zero_output=True
)
LLAMA = BlockConfig.of_sizes(
    16, 2, 24, norm="rms", activation="swiglu", bias=False, dropout=0.1, position="rotary_half", zero_output=True
)
BERT_BLOCK = bert.PRESETS["tiny"].block.replace(d_model=16, heads=2, d_ff=32, dropout=0.1, attention_dropout=0.1)
VIT = BlockConfig.of_sizes(16, 2, 32, activation="gelu", dropout=0.1, position="learned", zero_output=True)

mini = partial(Preset, layers=1, training=CONFIG, minutes=0.01)
MINI = {
    Translation: mini(block=BLOCK, vocab_size=400, batch_size=600),
    Language: mini(block=LLAMA, vocab_size=300, batch_size=32, context=8),
    Music: replace(
        music.PRESETS["tiny"],
        block=music.PRESETS["tiny"].block.replace(d_model=16, heads=2, d_ff=24),
        layers=1,
        batch_size=64,
        context=16,
        training=CONFIG,
        minutes=0.01,
    ),
    PreTraining: mini(block=BERT_BLOCK, vocab_size=400, batch_size=1000, context=160),
    Sets: mini(
        block=BLOCK.replace(d_model=16, heads=2),
        sizes={"decoder_layers": 1, "points": 3},
        training=replace(CONFIG, muon_lr=None),
        batch_size=16,
    ),
    Vision: mini(block=VIT, batch_size=16),
    **dict.fromkeys(
        (Text, Instructions, Rewards, Assistant), mini(block=LLAMA, vocab_size=300, batch_size=400, context=200)
    ),
    Arrays: mini(block=LLAMA.replace(norm="layer", position=None), vocab_size=262, batch_size=400, context=40),
}


def first(split: Splits, number: int) -> Splits:
    return Splits(split.train[:number], split.validation[:number], split.test[:number])


@cache
def few_sentences() -> Splits:
    splits = sentences("wesnoth", max_words=8)
    return Splits(splits.train[:200], splits.validation[:20], splits.test[:10])


@cache
def few_characters() -> Texts:
    texts = shakespeare()
    return Texts(texts.train[:3000], texts.validation[:403], "")


@cache
def few_chorales() -> Splits:
    return Splits(*([piece[:12] for piece in part[:4]] for part in chorales()))


@cache
def few_texts(part: str) -> dict[str, list[list[str]]]:
    number = {"train": 12, "validation": 4}[part]
    return {source: [document[:20] for document in documents[:number]] for source, documents in corpus(part).items()}


@cache
def few_pictures() -> Splits:
    splits = digits()
    return Splits(splits.train[:60], splits.validation[:20], splits.test[:20])


@cache
def few_questions() -> Material:
    kinds = {name: first(load(), 12) for name, load in KINDS.items()}
    return Material(Texts(*(text[:2000] for text in few_characters())), kinds)


few_examples = SimpleNamespace(
    reviews=cache(lambda: first(reviews(), 40)),
    verses=cache(lambda: first(verses(), 40)),
    sentence_pairs=cache(lambda: first(sentence_pairs(), 40)),
    spans=cache(lambda source="shakespeare": first(spans(source), 20)),
    tags=cache(lambda source="shakespeare": first(tags(source), 200)),
)


def install(patch) -> None:
    """Give every recipe its page and the preset `mini`, for as long as the patch lasts."""
    for recipe, preset in MINI.items():
        patch.setitem(recipe.presets, "mini", preset)
    patch.setattr(translation, "translation", lambda source, *pair: few_or(sentences, few_sentences, source, *pair))
    patch.setattr(language, "shakespeare", lambda source: few_or(shakespeare, few_characters, source))
    patch.setattr(music, "chorales", few_chorales)
    patch.setattr(bert, "corpus", few_texts)
    patch.setattr(assistant, "material", few_questions)
    patch.setattr(assistant, "ASKED", 3)
    patch.setattr(assistant, "ANSWERING", GenerationConfig(max_new_tokens=3))
    patch.setattr(assistant, "DRAWING", GenerationConfig(max_new_tokens=3, do_sample=True, seed=0))
    patch.setattr(assistant, "POLICY", PolicyConfig(group=4, max_new_tokens=3))
    patch.setattr(sets, "EPOCH", 5)
    patch.setattr(sets, "HELD_OUT", 1)
    patch.setattr(perceiver, "digits", few_pictures)
    patch.setattr(perceiver, "verses", few_examples.verses)
    patch.setattr(tasks, "data", few_examples)
    patch.setitem(vision.DATA, "fashion", few_pictures)
    whole = FineTuning.training.fget
    often = property(lambda recipe: replace(whole(recipe), precision="fp32", checkpoint_every=2))
    patch.setattr(FineTuning, "training", often)


def few_or(all_of, few, source, *more):
    """A little of the source that is the default; another is looked for, which wrong names need."""
    return few() if source in ("wesnoth", "shakespeare") else all_of(source, *more)


@cache
def untrained_bert() -> Path:
    """A BERT's folder, to fine-tune."""
    folder = Path(tempfile.mkdtemp(prefix="bert-"))
    recipe = PreTraining(preset="mini")
    splits = recipe.load()
    tokenizer = recipe.make_tokenizer(splits)
    torch.manual_seed(1)
    save_pretrained(recipe.make_model(splits, tokenizer), folder)
    tokenizer.save(folder / "tokenizer.json")
    return folder


def options(recipe: type[Recipe]) -> dict:
    """What makes a recipe tiny."""
    if recipe is FineTuning:
        return {"model": str(untrained_bert()), "task": "tags", "lr": 1e-3}
    more = {Translation: {"bpe_dropout": 0.2, "r_drop": 1.0}, Vision: {"augment": "usual"}}
    return {"preset": "mini", **more.get(recipe, {})} if recipe in MINI else {}


def run_by_two(recipe: type[Recipe], out: Path, engine: str, **options) -> dict:
    """The result of a run by two processes."""

    def one_of_two(rank: int) -> None:
        dist.init_process_group("gloo", init_method=f"file://{out}.store", rank=rank, world_size=2)
        run(recipe, out, quiet=True, parallel=engine, **options)
        dist.destroy_process_group()

    start = multiprocessing.get_context("fork").Process
    both = [start(target=one_of_two, args=(rank,)) for rank in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(timeout=300)
    assert [process.exitcode for process in both] == [0, 0]
    return json.loads((out / "model" / "result.json").read_text())


def dies_in(step: int, how: int):
    """A `train` that is sent a signal in that step."""

    def killed(model, batches, loss, *more, **options):
        done = 0

        def counted(model, batch):
            nonlocal done
            if model.training:
                done += 1
                if done == step:
                    os.kill(os.getpid(), how)
            return loss(model, batch)

        return train(model, batches, counted, *more, **options)

    return killed
