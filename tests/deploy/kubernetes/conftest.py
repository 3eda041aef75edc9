"""What Kustomize makes of the overlays and components."""

import os
import shutil
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from milkweed.server.config.settings import Settings

from ...support.once import once
from ...support.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[3]
KUBERNETES = ROOT / "deploy" / "kubernetes"

MODELS = ((), ("models-pvc",), ("models-oci",), ("models-objectstore",))
SCALING = ((), ("autoscale",), ("hpa",), ("kserve",))
COMBINATIONS = [
    *(("light", *models, *scaling) for models, scaling in product(MODELS, (*SCALING, ("scale-to-zero",)))),
    ("cpu", "models-pvc", "autoscale"),
    *(("gpu", *components) for components in (*MODELS, *SCALING[1:])),
    ("gpu-mig",),
    ("kserve",),
    ("cpu", "grpc"),
    ("light", "fetch"),
    ("gpu", "grpc", "fetch", "models-objectstore", "kserve"),
    # The dashboards are large: they meet each other component once.
    ("light", "monitoring", "models-oci", "hpa"),
    ("gpu", "monitoring", "dcgm", "models-pvc", "autoscale"),
    ("gpu-mig", "monitoring", "dcgm", "models-objectstore", "kserve"),
]

Document = dict[str, Any]


class Manifests:
    """The documents of one render.

    Args:
        names: the overlay and the components.
    """

    def __init__(self, text: str, names: tuple[str, ...] = ()) -> None:
        self.names = names
        self.documents: list[Document] = list(yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))

    def of(self, kind: str) -> list[Document]:
        """All of a kind."""
        return [document for document in self.documents if document["kind"] == kind]

    def one(self, kind: str, name: str = "milkweed") -> Document:
        """The one of a kind and name."""
        (document,) = (document for document in self.of(kind) if document["metadata"]["name"] == name)
        return document

    @property
    def pod(self) -> Document:
        """The pod's spec: of the Deployment, or of the predictor that stands for it, without what is KServe's own."""
        if self.of("Deployment"):
            return dict(self.one("Deployment")["spec"]["template"]["spec"])
        kserves = ("labels", "minReplicas", "maxReplicas", "scaleMetric", "scaleTarget")
        return {key: value for key, value in self.predictor.items() if key not in kserves}

    @property
    def predictor(self) -> Document:
        """The predictor of the InferenceService."""
        return dict(self.one("InferenceService")["spec"]["predictor"])

    @property
    def pod_labels(self) -> dict[str, str]:
        """The labels of the pods."""
        deployed = self.of("Deployment")
        return dict(deployed[0]["spec"]["template"]["metadata"]["labels"] if deployed else self.predictor["labels"])

    @property
    def server(self) -> Document:
        """The container of the server: the only one that goes on running."""
        (container,) = self.pod["containers"]
        return dict(container)

    @property
    def containers(self) -> list[Document]:
        """All of the pod."""
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    @property
    def volumes(self) -> dict[str, Document]:
        """The pod's volumes by name."""
        return {volume["name"]: volume for volume in self.pod["volumes"]}

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the server."""
        maps = [self.one("ConfigMap", source["configMapRef"]["name"])["data"] for source in self.server["envFrom"]]
        variables = {variable["name"]: variable["value"] for variable in self.server["env"]}
        return {name: value for values in (*maps, variables) for name, value in values.items()}


Kustomize = Callable[..., Manifests]


@pytest.fixture(scope="session")
def kustomize_folder() -> Callable[[Path], str]:
    """Renders a folder as `kubectl kustomize` prints it, with nothing allowed that a user would have to allow."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")

    def render(folder: Path) -> str:
        command = [kubectl, "kustomize", str(folder)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
        assert result.returncode == 0, result.stderr
        assert not result.stderr, result.stderr  # what is deprecated
        return result.stdout

    return render


@pytest.fixture(scope="session")
def kustomize(tmp_path_factory: pytest.TempPathFactory, kustomize_folder: Callable[[Path], str]) -> Kustomize:
    """Renders an overlay with components; each combination once."""
    done: dict[tuple[str, ...], Manifests] = {}

    def rendered(folder: Path, overlay: str, *components: str) -> None:
        here = os.path.relpath(KUBERNETES, folder.resolve())
        content = {
            "resources": [f"{here}/overlays/{overlay}"],
            "components": [f"{here}/components/{name}" for name in components],
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
        (folder / "rendered.yaml").write_text(kustomize_folder(folder))

    def render(*names: str) -> Manifests:
        if names not in done:
            folder = once(tmp_path_factory, "+".join(names), lambda made: rendered(made, *names))
            done[names] = Manifests((folder / "rendered.yaml").read_text(), names)
        return done[names]

    return render


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `manifests` runs with every combination."""
    if "manifests" in metafunc.fixturenames:
        metafunc.parametrize("manifests", COMBINATIONS, ids="+".join, indirect=True)


@pytest.fixture
def manifests(request: pytest.FixtureRequest, kustomize: Kustomize) -> Manifests:
    """One combination of an overlay and components."""
    return kustomize(*request.param)


@pytest.fixture
def settings(manifests: Manifests, settings_of: Callable[[dict[str, str]], Settings]) -> Settings:
    """What the server of the combination makes of its environment."""
    ours = {name: value for name, value in manifests.environment.items() if name.startswith("MILKWEED_")}
    assert {name.removeprefix("MILKWEED_").lower() for name in ours} <= set(Settings.model_fields)
    return settings_of(ours)
