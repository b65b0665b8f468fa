"""How long the lessons took stands at the end of the report."""

LONGEST = 90      # seconds that a lesson may take
SECONDS = "seconds of a lesson"      # the property of a test's report, which comes from its process to here


def pytest_terminal_summary(terminalreporter):
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.getreports(kind)]
    for lesson, seconds in sorted(value for each in reports for name, value in each.user_properties if name == SECONDS):
        slow = f"  longer than {LONGEST} s" if seconds > LONGEST else ""
        terminalreporter.write_line(f"lesson {lesson}: {seconds:.0f} s{slow}", yellow=bool(slow))
