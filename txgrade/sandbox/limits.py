"""How much a submission may use."""

import json
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True)
class Limits:
    """Bounds on one kernel and all its processes. Sizes are in MB (2**20 bytes)."""

    memory_mb: int = 4096  # beyond what the zygote already holds
    cpu_seconds: int = 600  # of all its processes together
    processes: int = 32  # threads count too
    open_files: int = 512
    file_mb: int = 128  # one file
    disk_mb: int = 512  # the private home
    output_mb: int = 16  # all that a notebook displays, and one message
    cell_seconds: int | float = 60
    notebook_seconds: int | float = 300  # on each seed, runs of single tasks included

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise ValueError(f"limit {field.name} = {value!r}: give a number above 0")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Limits":
        """
        Raises:
            ValueError: not JSON, an unknown limit, or one that isn't above 0.
        """
        values = json.loads(text)
        unknown = set(values) - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"no limit is called {', '.join(sorted(unknown))}")
        return cls(**values)
