"""Made-up results of every kind for one real assignment: what pages and exports are tested with."""

import base64
import struct
import zlib
from dataclasses import replace
from pathlib import Path

from txgrade.authoring.assignment import Assignment, GradedTask, digest
from txgrade.records.gradebook import Gradebook
from txgrade.records.result import Note, Part, Result, TaskResult

PROMPTS = {
    "scores": """### Task 1 · Scores   ●○○○○ · 5 minutes · 2 points

Compare every query with every key: the dot product, divided by $\\sqrt{d_k}$. It must also work with further axes in
front, such as a batch. See [the lesson](../notebooks/03_attention.ipynb).

<details><summary>Hint 1: which shape comes out?</summary>

One row a query, one column a key.
</details>
<details><summary>Hint 2: which size is $d_k$?</summary>The last axis of `q`.</details>""",
    "causal-mask": """### Task 2 · The causal mask   ●●○○○ · 5 minutes · 2 points

While it writes word 4, a decoder must not read word 5. Return a boolean matrix that is `True` exactly where query $i$
may attend to key $j$, so where $j \\le i$.

<details><summary>Hint 1: which way round?</summary>

Row 0 belongs to the first query. How many keys may it see?
</details>""",
    "attention": """### Task 3 · Attention with a mask   ●●●○○ · 10 minutes · 3 points

$$\\text{attention}(Q, K, V) = \\text{softmax}\\left(\\frac{QK^\\top}{\\sqrt{d_k}}\\right) V$$

| shape | of |
| --- | --- |
| `(n, d_k)` | the queries |
| `(m, d_v)` | the values |

```python
weights = score.softmax(dim=-1)      # each row sums to 1
```

<details><summary>Hint 1: in which order?</summary>

What is masked *before* the softmax leaves its share to the others.
</details>""",
    "plot": "### Task 4 · A picture   ●○○○○ · 5 minutes · 1 point\n\nDraw the weights of one head.",
    "essay": "### Task 5 · Why the root?   ●●○○○ · 10 minutes · 4 points\n\nExplain in your own words why scores are "
    "divided by $\\sqrt{d_k}$.",
}
TITLES = {
    "scores": "Scores",
    "causal-mask": "The causal mask",
    "attention": "Attention with a mask",
    "plot": "A picture",
    "essay": "Why the root?",
}
POINTS = {"scores": 2, "causal-mask": 2, "attention": 3, "plot": 1, "essay": 4}
KINDS = {"plot": "tests", "essay": "written"}
ASSIGNMENT = Assignment(
    "03_attention",
    "Exercise 03 · Attention",
    Path("solutions/03_attention.py"),
    None,
    tuple(
        GradedTask(
            id,
            TITLES[id],
            POINTS[id],
            KINDS.get(id, "evidence"),
            f"check-{id}",
            (id,),
            prompt=PROMPTS[id],
            rubric="2 points for the variance, 2 for the softmax." if id == "essay" else "",
        )
        for id in TITLES
    ),
    "a" * 64,
)

RIGHT = {
    "scores": 'def scores(q, k):\n    """How well each key matches each query."""\n'
    "    return q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5      # (n, m)",
    "causal-mask": "def causal_mask(n: int):\n    position = torch.arange(n)\n"
    "    return position[:, None] >= position[None, :]",
    "attention": "def attention(q, k, v, mask):\n    score = scores(q, k).masked_fill(~mask, float('-inf'))\n"
    "    return score.softmax(dim=-1) @ v",
    "plot": "plt.imshow(weights)\nplt.show()",
    "essay": "A dot product of d_k independent entries has variance d_k.\n\nWithout the root the *softmax* saturates "
    "and its gradient vanishes.",
}


def png(width: int = 320, height: int = 200) -> str:
    """A small grey picture, base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes((x * 255 // width + y) % 256 for x in range(width)) for y in range(height))
    whole = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    return base64.b64encode(whole).decode()


def task(id: str, verdict: str = "right", points: int | float | None = None, **more: object) -> TaskResult:
    most = POINTS[id]
    points = (most if verdict == "right" else 0) if points is None else points
    answer = more.pop("answer", RIGHT[id])
    more = {"in_sequence": points, "alone": points} | more
    return TaskResult(
        id,
        TITLES[id],
        KINDS.get(id, "evidence"),
        verdict,
        points,
        most,
        answer=answer,
        answer_hash=digest(answer),
        **more,
    )


def result(name: str, *tasks: TaskResult, status: str = "graded", **more: object) -> Result:
    score = sum(each.points for each in tasks)
    return Result(
        name,
        status,
        score,
        ASSIGNMENT.points,
        more.pop("isolation", "sealed"),
        (1204871, 998244353),
        digest(name),
        ASSIGNMENT.hash,
        "Python 3.11.2, x86_64, torch 2.13.0, numpy 2.4.1",
        tasks,
        **more,
    )


def matrix(values: list, kind: str = "bool") -> dict:
    side = round(len(values) ** 0.5)
    return {"kind": "tensor", "dtype": kind, "shape": [side, side], "values": values}


LOWER = [j <= i for i in range(4) for j in range(4)]
UPPER = [j >= i for i in range(4) for j in range(4)]
NUMBERS = [round(0.37 * i - 2.01 * j + 0.01, 4) for i in range(8) for j in range(8)]

ADA = result(
    "Ada Lovelace",
    task("scores"),
    task("causal-mask"),
    task("attention"),
    task("plot", outputs=({"png": png()}, {"text": "weights sum to 1.0000\n"})),
    task("essay", "reviewed", 4, lines=("Clear, and the variance is derived. Lovely.",)),
)
ZOFIA = result(
    "Žofia Nováková",
    task(
        "scores",
        "wrong",
        matrices=(matrix([x + (i % 3 == 0) for i, x in enumerate(NUMBERS)], "float32"), matrix(NUMBERS, "float32")),
        lines=(
            "Result 1 of 2 (n = 8, m = 8, d_k = 7): the first difference is at [0, 0]: expected 0.01, yours is "
            "1.01 (22 of 64 values differ).",
        ),
    ),
    task(
        "causal-mask",
        "mistake",
        matrices=(matrix(UPPER), matrix(LOWER)),
        answer="def causal_mask(n):\n    return torch.ones(n, n).triu().bool()",
        lines=(
            "This lets each query see the *future*. Row 0 is the first query: it may see one key only.",
            "Result 3 of 3 (n = 4): the first difference is at [0, 1]: expected False, yours is True (12 of 16 "
            "values differ).",
        ),
        sentences=("This lets each query see the *future*. Row 0 is the first query: it may see one key only.",),
    ),
    task(
        "attention",
        "right",
        3,
        in_sequence=0,
        alone=3,
        lines=(
            "Right when it runs by itself: another cell of your notebook gets in its way.",
            "In your notebook: Result 1 of 3: the first difference is at [0, 0]: expected 0.1321, yours is 0.2.",
        ),
    ),
    task(
        "plot",
        "partial",
        0.5,
        parts=(Part("axes are labelled", True, 0.5, 0.5), Part("a title", False, 0, 0.5)),
        outputs=({"png": png()},),
    ),
    task("essay", "pending"),
    notes=(
        Note("late", "1 day and 3 hours late: 10 % of the points for each day begun, here 20 %.", review=False),
        Note("forbidden call", "calls torch.nn.functional.scaled_dot_product_attention", "attention"),
        Note("duplicated", "the cell is there twice; the first one counts", "scores"),
    ),
    penalty=0.7,
    submitted="2026-12-02T02:59:00+00:00",
)
ZOFIA = replace(ZOFIA, score=2.8)
NAMAE = result(
    "名前",
    task(
        "scores",
        "error",
        lines=(
            "Your answer raised `RuntimeError`: mat1 and mat2 shapes cannot be multiplied (3x7 and 5x7)",
            "In `scores`, line 3: `return q @ k / q.shape[-1] ** 0.5`",
        ),
    ),
    task("causal-mask", "unanswered", answer="def causal_mask(n):\n    raise NotImplementedError"),
    task(
        "attention",
        "timeout",
        answer="def attention(q, k, v, mask):\n    while True:\n        pass",
        lines=("Its cell ended the run: a cell took longer than 60 seconds.",),
    ),
    task("plot", "stopped"),
    task("essay", "missing", answer="", lines=("Its cell is not in your notebook.",)),
)
INVALID = result(
    "mallory",
    task("scores", "invalid", lines=("Evidence was shown twice.",)),
    task("causal-mask"),
    task("attention", "mistake", lines=("The division by √d_k is missing.",)),
    task("plot", "wrong"),
    task("essay", "unanswered", answer=""),
    notes=(Note("extra code", "3 code cells that are not in the exercise were left out"),),
)
BROKEN = result("boris", status="truncated", notes=(Note("truncated", "the file ends in the middle, at 17,204 bytes"),))
UNREADABLE = replace(result("empty-folder", status="no notebook"), submission_hash="")
LOOSE = replace(result("ünsealed", task("scores"), isolation="limits-only"))
RESULTS = [ADA, ZOFIA, NAMAE, INVALID, BROKEN, UNREADABLE]

HOSTILE = [
    "<script>alert(1)</script>",
    "</pre></code><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "[click](javascript:alert(1))",
    "![x](http://evil.example/x.png)",
    "{{ 7*7 }}{% include '/etc/passwd' %}",
    "abc\u202egnp.exe",
    "\x1b[2J\x1b[31mred\x00\x07",
    "half \ud800 character",
    "</title></style><base href=//evil>",
    "`</code><script>`*<b>*",
    "&lt;script&gt;",
    "]]>-->",
]


def essays(out: Path, count: int = 3, **more: object) -> list[Result]:
    """A results folder whose learners l000, l001, … have each written another essay; returns their results."""
    results = [
        result(f"l{i:03}", task("scores", "wrong"), task("essay", "pending", answer=f"Because of {i}.", **more))
        for i in range(count)
    ]
    with Gradebook(out / "gradebook.sqlite") as book:
        run = book.start_run(ASSIGNMENT, "Python", "sealed", (1, 2))
        for one in results:
            book.add(run, one)
    return results
