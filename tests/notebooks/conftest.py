"""How long the lessons took stands at the end of the report."""

import pytest

LONGEST = 90      # seconds that a lesson may take
SECONDS = pytest.StashKey[dict[str, float]]()


def pytest_configure(config):
    config.stash[SECONDS] = {}


@pytest.fixture
def seconds(request):
    return request.config.stash[SECONDS]


def pytest_terminal_summary(terminalreporter, config):
    for lesson, seconds in config.stash[SECONDS].items():
        slow = f"  longer than {LONGEST} s" if seconds > LONGEST else ""
        terminalreporter.write_line(f"lesson {lesson}: {seconds:.0f} s{slow}", yellow=bool(slow))
