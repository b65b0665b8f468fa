"""DeiT (Touvron et al. 2021): ViT with a second token, which learns from a teacher's predictions."""

from txlib.models.families.bert import pooler
from txlib.models.families.family import Family, Head, Name, same
from txlib.models.families.vit import VIT, classes, names
from txlib.models.vit import ViT, ViTConfig, ViTForImageClassification, ViTForImageClassificationWithTeacher

DEIT = Family(
    "deit",
    ViTConfig,
    heads={
        "DeiTModel": Head(ViT, pooler, bare=True),
        "DeiTForImageClassification": Head(ViTForImageClassification, classes),
        "DeiTForImageClassificationWithTeacher": Head(
            ViTForImageClassificationWithTeacher,
            classes,
            names=same(
                "",
                "",
                ("cls_classifier", "classifier"),
                ("distillation_classifier", "distillation_classifier"),
            ),
        ),
    },
    implied={**VIT.implied, "distillation": True},
    fixed=VIT.fixed,
    settings=VIT.settings,
    describe=VIT.describe,
    names=(*names("deit."), Name("deit.embeddings.distillation_token", ("base.distillation_token",), "row")),
    prefix="deit.",
    our_prefix="base.",
    ignored=(r"deit\.embeddings\.mask_token",),
)
