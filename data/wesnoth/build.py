"""Rebuild the sentence pairs of Battle for Wesnoth: `python data/wesnoth/build.py [--catalogs DIR]`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from catalogs import build  # noqa: E402  (the folder above is not a package)

PARTS = ["data", "did", "dm", "dw", "ei", "httt", "l", "low", "nr"]
PARTS += ["sof", "sota", "sotbe", "thot", "trow", "tsg", "ttb", "utbs"]

if __name__ == "__main__":
    build(__file__, [f"wesnoth-1.16-{part}" for part in PARTS], ["de", "fr"])
