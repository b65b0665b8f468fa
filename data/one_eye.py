"""Write one_eye.json: what the shipped BERT loses when it may look to one side only (lesson 14 §5), by seed.

    python data/one_eye.py 0 1 2

Three twins go on training from its weights, with the same texts and gaps: one sees both sides, one the left, one the
right. A fourth reader joins the two one-sided ones at the end. It takes about two CPU-minutes per seed. `recorded.py`
does the work.
"""

from collections import Counter
from functools import partial
from itertools import chain, islice

import torch
import torch.nn.functional as F
from recorded import Runs, record_seeds
from torch import Tensor

from txlib import load_pretrained
from txlib.attention import Mask, causal, full
from txlib.data import BatchDict, shipped
from txlib.data.pretraining import corpus, encode, pair_batches
from txlib.labels import IGNORE_INDEX
from txlib.models import BertForPreTraining
from txlib.recipes.bert import PRESETS
from txlib.text import load_tokenizer
from txlib.training import optimizers, training_step, warmup_linear

RUNS = Runs(__file__, "14_bert")
SIDES = {"both sides": full(), "left": causal(), "right": Mask(lambda query, key: query <= key)}
STEPS, TOKENS = 150, 1500  # tokens per step
MARKS = (50, 100, 150)  # steps after which the held-out gaps are asked
TEST_BATCHES = 24


def logits_of(model: BertForPreTraining, batch: BatchDict, side: str, asked: Tensor) -> Tensor:
    """(asked, vocab): what the model says at the positions that are `asked`, (batch, length)."""
    rows = batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]
    hidden = model.base(*rows, mask=SIDES[side]).last_hidden_state[asked]  # (asked, d_model)
    return model.predictions(hidden, model.base.embedding.weight)


def one_eye(seed: int) -> dict[str, dict[str, float]]:
    """Train the twins; return the fraction of held-out gaps that each fills correctly after each mark."""
    tokenizer, preset = load_tokenizer(shipped("bert-tiny")), PRESETS["tiny"]
    gap = tokenizer.special_tokens["[MASK]"]
    train, held_out = (encode(corpus(part), tokenizer) for part in ("train", "validation"))
    batches = pair_batches(train, tokenizer, preset.context, TOKENS, seed=seed)
    test = list(islice(pair_batches(held_out, tokenizer, preset.context, TOKENS)(0), TEST_BATCHES))
    answers = torch.cat([batch["labels"][batch["input_ids"] == gap] for batch in test])  # (gap,)

    @torch.no_grad()
    def fill(model: BertForPreTraining, side: str) -> Tensor:  # (gap, vocab): log-probabilities
        said = [logits_of(model, batch, side, batch["input_ids"] == gap) for batch in test]
        return torch.cat(said).log_softmax(dim=-1)

    def right(said: Tensor) -> float:
        return (said.argmax(dim=-1) == answers).float().mean().item()

    def loss(model: BertForPreTraining, batch: BatchDict) -> tuple[Tensor, Tensor]:
        asked = batch["labels"] != IGNORE_INDEX  # (batch, length)
        logits = logits_of(model, batch, side, asked)
        return F.cross_entropy(logits, batch["labels"][asked], reduction="sum"), asked.sum()

    fractions, said = {}, {}
    for side in SIDES:
        model = load_pretrained(shipped("bert-tiny"), dtype=torch.float32).train()
        optimizer = optimizers(model, lr=preset.training.lr / 2, muon_lr=preset.training.muon_lr / 2)
        fractions[side] = {}
        for step, batch in enumerate(islice(batches(0), STEPS), start=1):
            optimizer.set_factor(warmup_linear(step, STEPS, warmup=15))
            training_step(model, [batch], loss, optimizer, clip=1.0)
            if step in MARKS:
                said[side] = fill(model, side)
                fractions[side][str(step)] = right(said[side])
    counts = Counter(chain.from_iterable(chain.from_iterable(chain.from_iterable(train.values()))))
    frequency = torch.tensor([counts[id] + 1.0 for id in range(len(tokenizer))])  # (vocab,)
    return fractions | {"joined": {str(STEPS): right(said["left"] + said["right"] - frequency.log())}}


def record(seed: int) -> None:
    """Record all readers with this seed."""
    torch.set_num_threads(1)
    RUNS.record(partial(one_eye, seed), "right", seed)


if __name__ == "__main__":
    record_seeds(record)
