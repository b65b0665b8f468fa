"""Big Bird and its heads (Zaheer et al. 2020), as an encoder. Its tensors have BERT's names, except for the pooler and
two heads.
"""

from typing import Any

from txlib.attention import BigBirdConfig
from txlib.models import bert, big_bird
from txlib.models.encoder import Encoder, EncoderConfig
from txlib.models.families.bert import BERT, NAMES, SETTINGS, TIED, describe, labels, pooler, sizes
from txlib.models.families.family import Family, Head, Setting, Settings, Translation, same

DENSE, SPARSE = "original_full", "block_sparse"


def read_attention(settings: Settings) -> dict[str, Any]:
    """Return the mechanism.

    Raises:
        ValueError: for an unknown type of attention.
    """
    kind = settings.get("attention_type", SPARSE)
    if kind not in (DENSE, SPARSE):
        raise ValueError(f"attention_type={kind!r} is not supported, only {DENSE}, {SPARSE}")
    if kind == DENSE:
        return {"block.attention.mechanism": None}
    mechanism = BigBirdConfig(settings.get("block_size", 64), settings.get("num_random_blocks", 3))
    return {"block.attention.mechanism": mechanism}


def write_attention(config: EncoderConfig) -> dict[str, Any]:
    """Return the name of the mechanism, and its sizes.

    Raises:
        ValueError: for another mechanism.
    """
    mechanism = config.block.attention.mechanism
    if mechanism is None:
        return {"attention_type": DENSE}
    if not isinstance(mechanism, BigBirdConfig):
        raise ValueError(f"big_bird has two mechanisms, dense and BigBirdConfig, not {mechanism}")
    return {"attention_type": SPARSE, "block_size": mechanism.block, "num_random_blocks": mechanism.random}


BIG_BIRD = Family(
    "big_bird",
    EncoderConfig,
    heads={
        "BigBirdModel": Head(Encoder, pooler, bare=True),
        "BigBirdForPreTraining": Head(bert.BertForPreTraining, fixed=TIED),
        "BigBirdForMaskedLM": Head(bert.BertForMaskedLM, fixed=TIED),
        "BigBirdForSequenceClassification": Head(
            big_bird.BigBirdForSequenceClassification,
            labels,
            names=same("classifier.", "", ("dense", "dense"), ("out_proj", "classifier")),
        ),
        "BigBirdForQuestionAnswering": Head(big_bird.BigBirdForQuestionAnswering),
        "BigBirdForTokenClassification": Head(bert.BertForTokenClassification, labels),
        "BigBirdForMultipleChoice": Head(bert.BertForMultipleChoice),
    },
    implied=BERT.implied,
    fixed={"is_decoder": False, "add_cross_attention": False, "use_bias": True, "rescale_embeddings": False},
    settings=(
        *sizes("gelu_new"),
        *SETTINGS,
        Setting("sep_token_id", "sep_id", 66),
        Translation(read_attention, write_attention),
    ),
    describe=describe,
    names=(
        *NAMES,
        *same(
            "",
            "",
            ("bert.pooler", "base.pooler"),
            ("qa_classifier.intermediate.dense", "feed_forward.up_proj"),
            ("qa_classifier.output.dense", "feed_forward.down_proj"),
            ("qa_classifier.output.LayerNorm", "feed_forward_norm"),
            ("qa_classifier.qa_outputs", "span"),
        ),
    ),
    prefix="bert.",
    our_prefix="base.",
    ignored=BERT.ignored,
)
