"""docs/kubernetes.md shows what works."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    """The text of docs/kubernetes.md."""
    return (root / "docs" / "kubernetes.md").read_text(encoding="utf-8")


def test_the_combination_on_the_page_renders(
    page: str, root: Path, tmp_path: Path, kustomize_folder: Callable[[Path], Any]
) -> None:
    """In the place that the page names, in a copy of the tree."""
    for part in ("kubernetes", "grafana/dashboards"):
        shutil.copytree(root / "deploy" / part, tmp_path / "deploy" / part)
    pattern = r"`(deploy/kubernetes/overlays/\w+/kustomization\.yaml)`.*?```yaml\n(.*?)```"
    ((place, text),) = re.findall(pattern, page, re.DOTALL)
    file = tmp_path / place
    file.parent.mkdir()
    file.write_text(text)
    made = kustomize_folder(file.parent)
    assert made.one("ScaledObject")
    assert made.one("PrometheusRule")
    assert made.settings["MILKWEED_REPOSITORY"] == "/models"
    assert made.settings["MILKWEED_ALIASES"] == "production=deit@3"
    assert made.server["image"] == "registry.example/milkweed:0.1.0-cuda"


def test_every_command_names_a_folder_that_is_there(page: str, root: Path) -> None:
    folders = re.findall(r"-k (deploy/[\w/-]+)", page)
    assert len(folders) >= 2
    for folder in folders:
        assert folder == "deploy/kubernetes/overlays/mine" or (root / folder / "kustomization.yaml").is_file()


def test_the_secret_has_the_name_that_is_used(page: str, kustomize: Any) -> None:
    pod = kustomize("cpu", "models-objectstore").pod
    (fetch,) = pod["initContainers"]
    (secret,) = (volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume)
    (config,) = (Path(each.partition("=")[2]) for each in fetch["args"] if each.startswith("--config="))
    assert f"create secret generic {secret} --from-file={config.name}" in page
    (remote,) = {argument.partition(":")[0] for argument in fetch["args"] if ":$(" in argument}
    assert f"a remote called {remote}" in page


@pytest.fixture
def scaled(root: Path, tmp_path: Path, kustomize_folder: Callable[[Path], Any]) -> Callable[[int, str], Any]:
    """Renders a block of docs/scaling.md, by its place, below a head."""

    def render(place: int, head: str) -> Any:
        shutil.copytree(root / "deploy" / "kubernetes", tmp_path / "kubernetes")
        blocks = re.findall(r"```yaml\n(.*?)```", (root / "docs" / "scaling.md").read_text(), re.DOTALL)
        assert len(blocks) == 2
        folder = tmp_path / "kubernetes" / "overlays" / "mine"
        folder.mkdir()
        (folder / "kustomization.yaml").write_text(head + blocks[place])
        return kustomize_folder(folder)

    return render


def test_the_host_of_held_requests_is_set_as_the_page_on_scaling_says(scaled: Callable[[int, str], Any]) -> None:
    made = scaled(1, "resources: [../cpu]\n")
    assert made.one("InterceptorRoute")["spec"]["rules"] == [{"hosts": ["classify.example.com"]}]
    assert made.one("ScaledObject")["spec"]["minReplicaCount"] == 0


def test_thresholds_are_set_as_the_page_on_scaling_says(scaled: Callable[[int, str], Any]) -> None:
    made = scaled(0, "resources: [../gpu]\ncomponents: [../../components/autoscale]\n").one("ScaledObject")["spec"]
    assert {each["name"]: each["metadata"]["threshold"] for each in made["triggers"]} == {
        "in-flight": "13",
        "queue-wait": "0.016",
    }
    assert made["maxReplicaCount"] == 8
