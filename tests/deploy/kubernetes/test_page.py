"""docs/kubernetes.md and docs/scaling.md show what works."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import ROOT, Manifests
from .test_pod import PAGE

SCALING = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def written(tmp_path: Path, kustomize_folder: Callable[[Path], str]) -> Callable[[str], Manifests]:
    """Renders a text as the kustomization of the overlay `mine`, in a copy of the tree."""

    def render(text: str) -> Manifests:
        for part in ("kubernetes", "grafana/dashboards"):
            shutil.copytree(ROOT / "deploy" / part, tmp_path / "deploy" / part)
        folder = tmp_path / "deploy" / "kubernetes" / "overlays" / "mine"
        folder.mkdir()
        (folder / "kustomization.yaml").write_text(text)
        return Manifests(kustomize_folder(folder))

    return render


def test_the_combination_on_the_page_renders(written: Callable[[str], Manifests]) -> None:
    pattern = r"`deploy/kubernetes/overlays/mine/kustomization\.yaml`.*?```yaml\n(.*?)```"
    (text,) = re.findall(pattern, PAGE, re.DOTALL)
    made = written(text)
    assert made.one("ScaledObject")
    rules = [rule for group in made.one("PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
    urls = {rule["annotations"]["runbook_url"] for rule in rules if "alert" in rule}
    assert {url.partition("#")[0] for url in urls} == {"https://docs.example.com/milkweed/runbook.html"}
    assert {url.partition("#")[2] for url in urls} == {rule["alert"].lower() for rule in rules if "alert" in rule}
    assert made.environment["MILKWEED_REPOSITORY"] == "/models"
    assert made.environment["MILKWEED_ALIASES"] == "production=deit@3"
    assert made.server["image"] == "registry.example/milkweed:0.2.0-cuda"


def test_the_secret_has_the_name_that_is_used(kustomize: Any) -> None:
    made = kustomize("light", "models-objectstore")
    arguments = made.pod["initContainers"][0]["args"]
    (secret,) = (volume["secret"]["secretName"] for volume in made.pod["volumes"] if "secret" in volume)
    (config,) = (Path(each.partition("=")[2]) for each in arguments if each.startswith("--config="))
    assert f"create secret generic {secret} --from-file={config.name}" in PAGE
    (remote,) = {argument.partition(":")[0] for argument in arguments if ":$(" in argument}
    assert f"a remote called {remote}" in PAGE


def test_thresholds_and_the_host_are_set_as_the_page_on_scaling_says(
    written: Callable[[str], Manifests], tmp_path: Path
) -> None:
    thresholds, host = SCALING
    scaled = written(f"resources: [../gpu]\ncomponents: [../../components/autoscale]\n{thresholds}")
    spec = scaled.one("ScaledObject")["spec"]
    triggers = {each["name"]: each["metadata"]["threshold"] for each in spec["triggers"]}
    assert (triggers, spec["maxReplicaCount"]) == ({"in-flight": "13", "queue-wait": "0.016"}, 8)
    shutil.rmtree(tmp_path / "deploy")
    held = written(f"resources: [../light]\n{host}")
    assert held.one("InterceptorRoute")["spec"]["rules"] == [{"hosts": ["classify.example.com"]}]
    assert held.one("ScaledObject")["spec"]["minReplicaCount"] == 0
