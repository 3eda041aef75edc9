"""What a stranger finds in the repository: workflows that are pinned and call what is there, one version everywhere."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from milkweed.cli.errors import WRONG_USAGE

from ..support.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
TARGETS = set(re.findall(r"^([\w./-]+)(?: [\w./-]+)*:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in load(path)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_rights_are_few(path: Path) -> None:
    lines = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line) for line in lines)
    assert load(path)["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] for job in load(path)["jobs"].values())
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_one_action_has_one_version() -> None:
    uses = {line for path in WORKFLOWS for line in re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))}
    assert len(uses) == len({line.partition("@")[0] for line in uses})


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_is_run_is_there(path: Path) -> None:
    text = "\n".join(step.get("run", "") for step in steps(path))
    assert set(re.findall(r"\bmake ([\w./-]+)", text)) <= TARGETS | {".venv/.installed-check"}
    for name in re.findall(r"(?<!\S)(?:\./)?(\.ci/\w+|docs/\S+|pyproject\.toml)", text):
        assert (ROOT / name).exists(), name


def test_what_is_published_says_where_it_was_built() -> None:
    for name in ("wheels", "image"):
        (job,) = (job for job in load(ROOT / f".github/workflows/{name}.yml")["jobs"].values() if "permissions" in job)
        rights, uses = job["permissions"], [step.get("uses", "").partition("@")[0] for step in job["steps"]]
        assert (rights["id-token"], rights["attestations"]) == ("write", "write")
        assert "actions/attest-build-provenance" in uses


@pytest.mark.parametrize("tool", ["actionlint", "zizmor"])
def test_linters_of_workflows_say_nothing(tool: str) -> None:
    program = shutil.which(tool)
    if program is None:
        pytest.skip(f"{tool} is not installed")
    command = [program, *(["--offline", "--quiet"] if tool == "zizmor" else []), *map(str, WORKFLOWS)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", [path for path in FORMS if path.stem != "config"], ids=lambda path: path.stem)
def test_issue_forms_ask_what_is_needed(path: Path) -> None:
    form = load(path)
    assert form.keys() == {"name", "description", "labels", "body"}
    questions = [part for part in form["body"] if part["type"] != "markdown"]
    assert all(part["attributes"]["label"] and part["id"] for part in questions)
    assert any(part.get("validations", {}).get("required") for part in questions)


def test_the_version_is_one() -> None:
    (version,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert load(ROOT / "CITATION.cff")["version"] == version
    assert f"\nARG VERSION={version}\n" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
    tags = [
        tag
        for pattern in ("overlays/*/kustomization.yaml", "kserve/kustomization.yaml")
        for path in (ROOT / "deploy/kubernetes").glob(pattern)
        for tag in re.findall(r"newTag: (\S+)", path.read_text(encoding="utf-8"))
    ]
    assert sorted(tags) == [f"{version}-{variant}" for variant in ("cpu", "cuda", "light", "light")]
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    assert set(re.findall(r"(\d+\.\d+\.\d+)-(?:cpu|cuda|light)", page)) == {version}
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(\d\S*)\]", changes, re.MULTILINE)[:1] in ([], [version])


def test_stability_says_the_exit_codes() -> None:
    page = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
    assert f"1 for a failure, {WRONG_USAGE} for wrong use" in page
