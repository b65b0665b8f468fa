"""What makes a task unfit for release, in words for its author."""

from txgrade.checking.verdict import is_stub
from txgrade.evidence.recordings import first_difference, same

FEWEST_MISTAKES = 3


def stub_problems(bundle: dict) -> list[str]:
    """Return what is wrong with what a check shows of an empty answer."""
    if not is_stub(bundle):
        return ["its check does not notice that the answer is still empty"]
    if any(result["points"] for result in bundle["shown"]):
        return ["its check gives points before it calls the answer"]
    return []


def task_problems(task: str, evidence: dict, measured: bool) -> list[str]:
    """Return what makes a task's evidence unfit for release."""
    reference = evidence["reference"][task]
    answers = [answer for answer in evidence["known"] if answer["task"] == task]
    mistakes = [answer for answer in answers if answer["sentence"]]
    problems = []
    if reference["error"]:
        problems.append(f"the reference fails: {reference['error']['error']}: {reference['error']['message']}")
    if not reference["shown"]:
        problems.append("its check shows nothing")
    if len({answer["points"] is None for answer in reference["shown"]}) > 1:
        problems.append(
            "its check gives points to some of the values that it shows; give points to all of them or to none"
        )
    if len(mistakes) < FEWEST_MISTAKES:
        problems.append(f"{len(mistakes)} known mistakes, at least {FEWEST_MISTAKES} are needed")
    if measured:
        return problems
    for answer in answers:
        difference = first_difference(answer["bundle"], reference)
        if answer["sentence"] is None and difference:
            problems.append(f"an alternative differs from the reference: {difference[1]}")
        if answer["sentence"] and same(answer["bundle"], reference):
            problems.append(f'a mistake can\'t be told from the reference: "{answer["sentence"]}"')
    for i, one in enumerate(mistakes):
        for other in mistakes[i + 1 :]:
            if one["sentence"] != other["sentence"] and same(one["bundle"], other["bundle"]):
                problems.append(f'two mistakes can\'t be told apart: "{one["sentence"]}" and "{other["sentence"]}"')
    return problems


def share_problems(task: str, evidence: dict, shares: list[dict]) -> list[str]:
    """Return what is wrong with what a measured task's answers are worth (see `measured_shares`)."""
    answers = [answer for answer in evidence["known"] if answer["task"] == task]
    problems = [answer["error"] for answer in shares if "error" in answer]
    if problems:
        return problems
    reference, *others, absurd = shares
    if absurd["share"] >= 1:
        problems.append(
            "absurd weights, ±3e38, earn all points: does the measure accept NaN? max(0, min(share, 1)) makes 0 of it"
        )
    if reference["share"] < 1:
        problems.append(
            f"the reference earns {reference['share']:g} of the points instead of all. {reference['sentence']}".rstrip()
        )
    for worth, answer in zip(others, answers, strict=True):
        if answer["sentence"] is None and worth["share"] < 1:
            problems.append(f"an alternative earns {worth['share']:g} of the points instead of all")
        if answer["sentence"] and worth["share"] >= 1:
            problems.append(f'a mistake earns all points: "{answer["sentence"]}"')
    return problems
