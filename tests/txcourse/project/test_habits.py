"""The files that users of open source expect: they parse, agree with each other, and name what exists."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

COURSE = Path(__file__).parents[3]
PAGES = [
    *(COURSE / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "HELP.md")),
    *sorted(COURSE.glob("docs/*.md")),
]
PAGES = [page for page in PAGES if page.exists()]
TARGETS = set(re.findall(r"^([a-z-]+):", (COURSE / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def read(path: str) -> str:
    return (COURSE / path).read_text(encoding="utf-8")


def jobs(workflow: str) -> dict:
    return yaml.safe_load(read(f".github/workflows/{workflow}"))["jobs"]


def slug(heading: str) -> str:
    """Return a heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("path", [*COURSE.glob(".github/**/*.yml"), *COURSE.glob(".*.yaml"), COURSE / "CITATION.cff"])
def test_yaml_parses(path):
    assert yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("workflow", ["test.yml", "site.yml"])
def test_workflows_run_what_exists(workflow):
    steps = [step["run"] for job in jobs(workflow).values() for step in job["steps"] if "run" in step]
    made = [target for step in steps for target in re.findall(r"\bmake ([a-z-]+)", step)]
    assert made and set(made) <= TARGETS
    for path in re.findall(r"\btests/[\w/.]*", "\n".join(steps)):
        assert (COURSE / path).exists(), path


def test_the_workflow_tests_the_oldest_and_the_newest_python_on_three_systems():
    project = tomllib.loads(read("pyproject.toml"))["project"]
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    matrix = jobs("test.yml")["library"]["strategy"]["matrix"]
    assert matrix["python"] == [pythons[0], pythons[-1]] and project["requires-python"] == f">={pythons[0]}"
    assert [system.split("-")[0] for system in matrix["os"]] == ["ubuntu", "macos", "windows"]


def test_tests_may_only_read_the_repository():
    workflow = yaml.safe_load(read(".github/workflows/test.yml"))
    assert workflow["permissions"] == {"contents": "read"} and "concurrency" in workflow
    assert all("permissions" not in job and job["timeout-minutes"] for job in workflow["jobs"].values())


def test_pre_commit_uses_the_ruff_of_the_constraints():
    hooks = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    (ruff,) = [repository["rev"] for repository in hooks if repository["repo"].endswith("ruff-pre-commit")]
    assert f"ruff=={ruff.removeprefix('v')}\n" in read("constraints.txt")


def test_the_citation_names_the_version():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= citation.keys()
    version = tomllib.loads(read("pyproject.toml"))["project"]["version"]
    assert citation["version"] == version


@pytest.mark.parametrize("form", sorted(COURSE.glob(".github/ISSUE_TEMPLATE/*.yml")), ids=lambda path: path.stem)
def test_issue_forms_ask_something(form):
    """GitHub shows no form that lacks one of these, or that asks two questions by one id."""
    fields = yaml.safe_load(form.read_text(encoding="utf-8"))
    if form.stem == "config":
        return
    assert fields["name"] and fields["description"]
    questions = [field for field in fields["body"] if field["type"] != "markdown"]
    ids = [question["id"] for question in questions]
    assert ids and len(set(ids)) == len(ids)
    assert all(question["attributes"]["label"] for question in questions)
    assert {field["type"] for field in fields["body"]} <= {"markdown", "textarea", "input", "dropdown", "checkboxes"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<img src="([^"]+)"', text):
        if link.startswith(("http", "mailto:")):
            continue
        path, _, section = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists():  # the site's pages: from docs/, the root and the build
            staged = ("parts/", "lookup/", "reference/")
            target = COURSE / path
            assert target.exists() or (page.parent.name == "docs" and path.startswith(staged)), link
        if section and target.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert section in map(slug, headings), link
