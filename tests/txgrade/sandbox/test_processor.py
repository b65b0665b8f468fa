"""Processor time: counted for all processes of a kernel together, bounded, and shared between kernels."""

import os

import pytest

from txgrade.sandbox import Limits, Zygote, groups, probe
from txgrade.sandbox.kernel import Cell, Gone, Kernel
from txgrade.sandbox.watching import Watched, process_namespace

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(probe().level != "sealed", reason=f"no sealed sandbox here: {probe().holes}"),
]

SPIN = "import time\nend = time.process_time() + {seconds}\nwhile time.process_time() < end: pass\n"
FAMILY = (
    f"import os\nfor _ in range(4):\n    if os.fork() == 0:\n        exec({SPIN.format(seconds=0.5)!r}); os._exit(0)\n"
)
WAIT = "for _ in range(4): os.wait()\n"


@pytest.fixture(scope="module", params=["groups", "looking"])
def zygote(request):
    """With control groups where this user has any; and without, as most ordinary users are."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "looking":
            patch.setattr(groups, "make_groups", lambda: [])
        with Zygote() as zygote:
            if request.param == "groups" and not zygote._groups:
                pytest.skip("this user may make no control groups (cgroups)")
            patch.setenv("TXGRADE_ZYGOTE", str(zygote.address))
            yield zygote


def printed(kernel, code, number):
    cell = Cell()
    kernel.run(code, number, 60, cell)
    return "".join(output.get("text", "") for output in cell.outputs)


def test_time_is_the_sum_over_all_processes(zygote):
    with Kernel(Limits()) as kernel:
        before = kernel.cpu_seconds()
        printed(kernel, FAMILY + WAIT + "time = __import__('time'); time.sleep(0.3)", 0)
        used = kernel.cpu_seconds() - before
    assert 1.9 < used < 4


def test_sleeping_takes_none(zygote):
    with Kernel(Limits()) as kernel:
        printed(kernel, "1", 0)
        before = kernel.cpu_seconds()
        printed(kernel, "import time; time.sleep(1)", 1)
        assert kernel.cpu_seconds() - before < 0.5


def test_the_limit_is_of_all_together(zygote):
    """No process of them comes near it; each lives long enough to be seen."""
    forever = FAMILY.replace("0.5", "2.5") + WAIT
    with Kernel(Limits(cpu_seconds=4, processes=100)) as kernel:
        with pytest.raises(Gone, match="limit of 4 s of processor time"):
            kernel.run(forever, 0, 60, Cell())
        assert kernel.cpu_seconds() >= 4  # also when it is gone


def test_a_family_weighs_as_much_as_one(zygote):
    """Two kernels on one core, one of them with twenty processes: the other gets its half, give or take."""
    core = min(os.sched_getaffinity(0))
    pin = f"import os; os.sched_setaffinity(0, [{core}])\n"
    many = (
        pin + f"for _ in range(20):\n    if os.fork() == 0:\n        exec({SPIN.format(seconds=30)!r}); os._exit(0)\n"
    )
    measure = "import time\nend = time.monotonic() + 3\nstart = time.process_time()\n"
    measure += "while time.monotonic() < end: pass\nprint(time.process_time() - start)"
    with Kernel(Limits(processes=100)) as greedy, Kernel(Limits()) as honest:
        printed(honest, pin, 0)
        printed(greedy, many, 0)
        printed(honest, "import time; time.sleep(1)", 1)  # until the twenty are seen
        before = greedy.cpu_seconds()
        own = float(printed(honest, measure, 2))
        theirs = greedy.cpu_seconds() - before
    assert own > 0.5 * theirs  # by processes it would be a twentieth


def test_a_process_that_ended_stays_counted():
    watched = Watched(process_namespace(os.getpid()))
    watched._own[2**30, 1] = 1000.0
    watched.look()
    assert watched.cpu_seconds() >= 1000
