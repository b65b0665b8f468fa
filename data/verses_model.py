"""Train the language model of lesson 10 on the bundled verses, in the English of 1611 and of today: checkpoints/verses.

    python data/verses_model.py

It takes about 20 minutes of one core. The run is in runs/; a run that was interrupted is resumed.
"""

from bundled import RUNS, bundle

from txlib.data import verses
from txlib.recipes.language import Language
from txlib.recipes.run import run

STEPS = 3_500


def main() -> None:
    """Train, unless that has been done, and keep the model."""
    out, text = RUNS / "verses", RUNS / "verses.txt"
    RUNS.mkdir(exist_ok=True)
    old, new = zip(*verses().train, strict=True)
    text.write_text("\n".join([*old, *new]) + "\n", encoding="utf-8")
    if not (out / "model").is_dir():
        run(Language, out, steps=STEPS, source=str(text), tokens="bpe", resume=(out / "run").is_dir())
    bundle(out)


if __name__ == "__main__":
    main()
