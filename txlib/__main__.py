"""`python -m txlib`, and `torchrun … -m txlib`: the command."""

import os

if "LOCAL_RANK" in os.environ:  # torch's warnings, once per process, are for those who write such programs
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from txlib.cli import main  # noqa: E402

main()
