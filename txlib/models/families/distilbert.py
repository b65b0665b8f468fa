"""DistilBERT and its heads (Sanh et al. 2019): BERT without segments and pooler, in half as many layers."""

from txlib.models import bert, distilbert
from txlib.models.encoder import Encoder, EncoderConfig
from txlib.models.families.bert import BERT, TIED, describe, labels
from txlib.models.families.family import ACTIVATIONS, Family, Head, Setting, same

DISTILBERT = Family(
    "distilbert",
    EncoderConfig,
    heads={
        "DistilBertModel": Head(Encoder, lambda settings: {"pooler": False}, bare=True),
        "DistilBertForMaskedLM": Head(bert.BertForMaskedLM, fixed=TIED),
        "DistilBertForSequenceClassification": Head(distilbert.DistilBertForSequenceClassification, labels),
        "DistilBertForQuestionAnswering": Head(bert.BertForQuestionAnswering),
        "DistilBertForTokenClassification": Head(bert.BertForTokenClassification, labels),
        "DistilBertForMultipleChoice": Head(distilbert.DistilBertForMultipleChoice),
    },
    implied={**BERT.implied, "block.norm.eps": 1e-12, "segments": 0},
    settings=(
        Setting("vocab_size", "vocab_size"),
        Setting("dim", "block.d_model"),
        Setting("n_heads", "block.attention.heads"),
        Setting("hidden_dim", "block.ffn.d_ff"),
        Setting("n_layers", "layers"),
        Setting("max_position_embeddings", "max_length", 512),
        Setting("activation", "block.ffn.activation", "gelu", words=ACTIVATIONS),
        Setting("dropout", "block.dropout", 0.1),
        Setting("attention_dropout", "block.attention.dropout", 0.1),
        Setting("seq_classif_dropout", "classifier_dropout", 0.2, like="block.dropout"),
        Setting("initializer_range", "init_std", 0.02),
        Setting("pad_token_id", "pad_id", 0),
    ),
    describe=describe,
    names=(
        *same(
            "distilbert.embeddings.",
            "base.",
            ("word_embeddings", "embedding"),
            ("position_embeddings", "position"),
            ("LayerNorm", "embedding_norm"),
        ),
        *same(
            "distilbert.transformer.layer.{}.",
            "base.encoder.layers.{}.",
            ("attention.q_lin", "self_attention.query"),
            ("attention.k_lin", "self_attention.key"),
            ("attention.v_lin", "self_attention.value"),
            ("attention.out_lin", "self_attention.output"),
            ("sa_layer_norm", "self_attention_norm"),
            ("ffn.lin1", "feed_forward.up_proj"),
            ("ffn.lin2", "feed_forward.down_proj"),
            ("output_layer_norm", "feed_forward_norm"),
        ),
        *same(
            "",
            "",
            ("vocab_transform", "predictions.dense"),
            ("vocab_layer_norm", "predictions.norm"),
            ("vocab_projector", "predictions"),
            ("pre_classifier", "dense"),
            ("classifier", "classifier"),
            ("qa_outputs", "span"),
        ),
    ),
    prefix="distilbert.",
    our_prefix="base.",
    ignored=(r"distilbert\.embeddings\.position_ids", r"vocab_projector\.weight"),
)
