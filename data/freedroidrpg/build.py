"""Rebuild the sentence pairs of FreedroidRPG: `python data/freedroidrpg/build.py [--catalogs DIR]`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from catalogs import build  # noqa: E402  (the folder above is not a package)

if __name__ == "__main__":
    build(__file__, ["freedroidrpg-data"], ["de", "fr"])
