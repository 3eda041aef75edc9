"""What Kustomize makes of the overlays and components, and facts of the code to hold it against."""

import ast
import os
import shutil
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from ...support.once import once
from ...support.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[3]
KUBERNETES = ROOT / "deploy" / "kubernetes"

MODELS = ((), ("models-pvc",), ("models-oci",), ("models-objectstore",))
SCALING = ((), ("autoscale",), ("hpa",), ("kserve",))
COMBINATIONS = [
    *(("cpu", *models, *scaling) for models, scaling in product(MODELS, (*SCALING, ("scale-to-zero",)))),
    *(("gpu", *components) for components in (*MODELS, *SCALING[1:])),
    ("gpu-mig",),
    ("kserve",),
    ("cpu", "grpc"),
    ("gpu", "grpc", "models-objectstore", "kserve"),
    # The dashboards are large: they meet each other component once.
    ("cpu", "monitoring", "models-oci", "hpa"),
    ("gpu", "monitoring", "dcgm", "models-pvc", "autoscale"),
    ("gpu-mig", "monitoring", "dcgm", "models-objectstore", "kserve"),
]

Document = dict[str, Any]


class Manifests:
    """The documents of one render."""

    def __init__(self, documents: list[Document]) -> None:
        self.documents = documents

    def of(self, kind: str) -> list[Document]:
        """All of a kind."""
        return [document for document in self.documents if document["kind"] == kind]

    def one(self, kind: str, name: str = "milkweed") -> Document:
        """The one of a kind and name."""
        (found,) = (document for document in self.of(kind) if document["metadata"]["name"] == name)
        return found

    @property
    def pod(self) -> Document:
        """The pod's spec: of the Deployment, or of the predictor that stands for it, without what is KServe's own."""
        if self.of("Deployment"):
            return dict(self.one("Deployment")["spec"]["template"]["spec"])
        own = ("labels", "minReplicas", "maxReplicas", "scaleMetric", "scaleTarget")
        return {key: value for key, value in self.predictor.items() if key not in own}

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
    def settings(self) -> dict[str, str]:
        """The environment of the server, where it is our settings."""
        environment: dict[str, str] = {}
        for source in self.server["envFrom"]:
            environment |= self.one("ConfigMap", source["configMapRef"]["name"])["data"]
        environment |= {each["name"]: each["value"] for each in self.server["env"]}
        return {name: value for name, value in environment.items() if name.startswith("MILKWEED_")}


Kustomize = Callable[..., Manifests]


@pytest.fixture(scope="session")
def kustomize(tmp_path_factory: pytest.TempPathFactory) -> Kustomize:
    """Renders an overlay with components; each combination once."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    done: dict[tuple[str, ...], Manifests] = {}

    def render(overlay: str, *components: str) -> Manifests:
        key = (overlay, *components)
        if key not in done:
            folder = once(tmp_path_factory, "+".join(key), lambda made: rendered(made, overlay, *components))
            done[key] = Manifests(loaded((folder / "rendered.yaml").read_text()))
        return done[key]

    def rendered(folder: Path, overlay: str, *components: str) -> None:
        here = os.path.relpath(KUBERNETES, folder.resolve())
        content = {
            "resources": [f"{here}/overlays/{overlay}"],
            "components": [f"{here}/components/{name}" for name in components],
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
        (folder / "rendered.yaml").write_text(text_of(kubectl, folder))

    return render


@pytest.fixture(scope="session")
def kustomize_folder() -> Callable[[Path], Manifests]:
    """Renders a folder."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    return lambda folder: Manifests(loaded(text_of(kubectl, folder)))


def text_of(kubectl: str, folder: Path) -> str:
    """What `kubectl kustomize` prints: with nothing allowed that a user would have to allow."""
    command = [kubectl, "kustomize", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert result.returncode == 0, result.stderr
    assert not result.stderr, result.stderr  # what is deprecated
    return result.stdout


def loaded(text: str) -> list[Document]:
    return list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `manifests` runs with every combination."""
    if "manifests" in metafunc.fixturenames:
        metafunc.parametrize("manifests", COMBINATIONS, ids="+".join, indirect=True)


@pytest.fixture
def manifests(request: pytest.FixtureRequest, kustomize: Kustomize) -> Manifests:
    """One combination of an overlay and components."""
    return kustomize(*request.param)


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def constant() -> Callable[[str, str], Any]:
    """The value of a constant in a file of the server, which need not be imported for that."""

    def read(file: str, name: str) -> Any:
        for node in ast.parse((ROOT / "server" / file).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and name in (getattr(target, "id", None) for target in node.targets):
                return ast.literal_eval(node.value)
        raise AssertionError(f"server/{file} has no {name}")

    return read
