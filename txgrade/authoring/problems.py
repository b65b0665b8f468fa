"""What makes a task unfit for release, in words for its author."""

from txgrade.checking.verdict import is_stub
from txgrade.evidence.recordings import first_difference, same

FEWEST_MISTAKES = 3


def stub_problems(bundle: dict) -> list[str]:
    """Return what is wrong with what a check shows of an empty answer."""
    if not is_stub(bundle):
        return ["its check does not notice that the answer is still empty"]
    if any(each["points"] for each in bundle["shown"]):
        return ["its check gives points before it calls the answer"]
    return []


def task_problems(task: str, evidence: dict, measured: bool) -> list[str]:
    """Return what makes a task's evidence unfit for release."""
    reference = evidence["reference"][task]
    known = [each for each in evidence["known"] if each["task"] == task]
    mistakes = [each for each in known if each["sentence"]]
    problems = []
    if reference["error"]:
        problems.append(f"the reference fails: {reference['error']['error']}: {reference['error']['message']}")
    if not reference["shown"]:
        problems.append("its check shows nothing")
    if len({each["points"] is None for each in reference["shown"]}) > 1:
        problems.append("its check gives points to some of the values that it shows; give them to all or to none")
    if len(mistakes) < FEWEST_MISTAKES:
        problems.append(f"{len(mistakes)} known mistakes, at least {FEWEST_MISTAKES} are needed")
    if measured:
        return problems
    for each in known:
        difference = first_difference(each["bundle"], reference)
        if each["sentence"] is None and difference:
            problems.append(f"an alternative differs from the reference: {difference[1]}")
        if each["sentence"] and same(each["bundle"], reference):
            problems.append(f'a mistake can\'t be told from the reference: "{each["sentence"]}"')
    for i, one in enumerate(mistakes):
        for other in mistakes[i + 1 :]:
            if one["sentence"] != other["sentence"] and same(one["bundle"], other["bundle"]):
                problems.append(f'two mistakes can\'t be told apart: "{one["sentence"]}" and "{other["sentence"]}"')
    return problems


def share_problems(task: str, evidence: dict, shares: list[dict]) -> list[str]:
    """Return what is wrong with what a measured task's answers are worth (see `measured_shares`)."""
    known = [each for each in evidence["known"] if each["task"] == task]
    problems = [each["error"] for each in shares if "error" in each]
    if problems:
        return problems
    reference, *others, absurd = shares
    if absurd["share"] >= 1:
        problems.append(
            "absurd weights, ±3e38, are worth all of the points: does the measure take NaN for good? "
            "max(0, min(share, 1)) makes 0 of it"
        )
    if reference["share"] < 1:
        problems.append(
            f"the reference is worth {reference['share']:g} of the points, not all of them. "
            f"{reference['sentence']}".rstrip()
        )
    for share, each in zip(others, known, strict=True):
        if each["sentence"] is None and share["share"] < 1:
            problems.append(f"an alternative is worth {share['share']:g} of the points, not all of them")
        if each["sentence"] and share["share"] >= 1:
            problems.append(f'a mistake is worth all of the points: "{each["sentence"]}"')
    return problems
