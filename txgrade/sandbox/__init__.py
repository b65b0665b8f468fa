"""The sandbox: a kernel that can reach nothing but itself.

It speaks through two pipes: `kernel.py` is the grader's end, the one way in; `cells.py` runs inside. From outside in:

- `warm.py` holds it warm for the length of a run, `plain.py` is what is left where none can be made;
- `zygote.py` starts the outer sandbox, bubblewrap's, with a zygote in it;
- `zygote_process.py` runs inside, has torch imported, and watches the kernels that `fork.py` makes of its children;
- `view.py` is the short list of files that exist inside;
- `groups.py` bounds memory and shares the processor by control groups, `watching.py` by looking where there are none;
- `jail.py` is what a child does to itself before it becomes a kernel: namespaces of its own, limits, no rights;
- `proc.py` says what it sees of /proc, `syscalls.py` what it may ask of Linux, which `filter.py` turns into a program;
- `leftovers.py` sweeps what a killed grader left, known by the names that `owners.py` gives;
- `probe.py` tries from inside what should be impossible, and says how tight the sandbox is here.

What it does not withstand: a hole in the part of Linux that it lets a kernel use. docs/grading_security.md says what
passes between two sandboxes at the same time.
"""

from txgrade.sandbox.limits import Limits
from txgrade.sandbox.probe import Probe, probe
from txgrade.sandbox.zygote import SandboxError, Zygote

__all__ = ["Limits", "Zygote", "Probe", "SandboxError", "probe"]
