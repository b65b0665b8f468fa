"""How models are written down: a file for each published family, and one for txlib's own format."""

from txlib.models.families.bert import BERT
from txlib.models.families.big_bird import BIG_BIRD
from txlib.models.families.family import TENSORS, Family
from txlib.models.families.gpt2 import GPT2
from txlib.models.families.llama import LLAMA
from txlib.models.families.longformer import LONGFORMER
from txlib.models.families.marian import MARIAN
from txlib.models.families.mixtral import MIXTRAL
from txlib.models.families.own import OWN
from txlib.models.families.perceiver import PERCEIVER
from txlib.models.families.t5 import T5
from txlib.models.families.vit import VIT

FAMILIES = {
    family.model_type: family
    for family in (GPT2, LLAMA, MIXTRAL, BERT, LONGFORMER, BIG_BIRD, MARIAN, T5, VIT, PERCEIVER, OWN)
}

__all__ = ["FAMILIES", "OWN", "TENSORS", "Family"]
