"""A server of a graph, or of a bundle for our CPU kernels, imports neither torch nor timm; one that does, dies."""

import json
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from milkweed.inference.forward import LanePlan
from milkweed.inference.open import open_model
from milkweed.inference.program import program_forward
from milkweed.jobs.export_into import export_into
from milkweed.models.bundle.bundle import save_bundle
from milkweed.models.bundle.config import BundleConfig
from milkweed.models.bundle.golden import golden_images, recorded
from milkweed.models.bundle.labels import default_labels
from milkweed.models.bundle.program_record import ProgramRecord
from milkweed.models.programs.session import kernels_refusal
from milkweed.models.programs.stored import stored_int8

from ..support.graphs import PROGRAM_ARGUMENTS, PROGRAM_SIZE, PROGRAM_VITAE_ARGUMENTS, program_vit, program_vitae
from ..support.server_parts import encoded
from .conftest import Serve

WITHOUT_TORCH = """
import importlib.machinery, os, sys
class Deadly:
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name in ("torch", "timm") else None
    def create_module(self, spec):
        print("imported:", spec.name, file=sys.stderr, flush=True)
        os._exit(77)
    def exec_module(self, module):
        pass
sys.meta_path.insert(0, Deadly())
"""
"""torch is found where somebody looks for it, and ends the process where somebody imports it."""


ARCHITECTURES = {
    "deit_tiny_patch16_224": (PROGRAM_ARGUMENTS, program_vit),
    "vitae_basic": (PROGRAM_VITAE_ARGUMENTS, program_vitae),
}
PREPROCESS = {"size": PROGRAM_SIZE, "crop_pct": 1.0, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def program_bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that was made for our CPU kernels, in int8."""
    folder, (arguments, model) = tmp_path_factory.mktemp("light"), ARCHITECTURES[request.param]
    pixels = torch.randn(32, 3, PROGRAM_SIZE, PROGRAM_SIZE, generator=torch.Generator().manual_seed(2))
    made = stored_int8(model(), PROGRAM_SIZE, pixels, folder / "activations")
    forward = program_forward(made.loaded, LanePlan(1, 1, 1), PROGRAM_SIZE, made.activations)
    golden = recorded(np.log(forward.run(golden_images(PROGRAM_SIZE)).probabilities))
    save_bundle(
        folder / "ours",
        made.model,
        BundleConfig(arch=request.param, arch_args=arguments, preprocess=PREPROCESS),
        default_labels(7),
        storage=made.storage,
        program=ProgramRecord(precision="int8", golden=golden),
        activations=made.tensors,
        operators=made.operators(PROGRAM_SIZE),
    )
    return folder / "ours"


def answers(serving: Serve, bundles: dict[str, Path], **settings: object) -> tuple[str, list[int]]:
    """The backend, and the best class of three images, of a server that dies where it imports torch."""
    began = time.perf_counter()
    with serving(bundles, fresh=True, prelude=WITHOUT_TORCH, page=False, **settings) as server:
        server.wait_ready()
        spent = json.loads(server.wait_log('"ready"'))["event"]["seconds"]
        assert 0 < spent["imports"] < spent["imports"] + spent["read"] + spent["warm_up"] <= spent["total"]
        assert spent["total"] < time.perf_counter() - began + 0.02  # the kernel counts starts in hundredths
        found = []
        for format in ("JPEG", "PNG", "WEBP"):
            answer = httpx.post(server.url + "/classify", content=encoded(format, seed=1))
            assert answer.status_code == 200, answer.text
            found.append(answer.json()["results"][0]["predictions"][0]["index"])
        [model] = httpx.get(server.url + "/v1/models").json()["models"]
        assert httpx.get(server.url + "/metrics").status_code == 200
        server.terminate()
        assert server.exit() == 0
    return model["backend"], found


@pytest.fixture(scope="module")
def graph_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of weights that was given its graph."""
    bundle = tmp_path_factory.mktemp("light") / "graph"
    config = BundleConfig(arch="vitae_basic", arch_args=PROGRAM_VITAE_ARGUMENTS, preprocess=PREPROCESS)
    save_bundle(bundle, program_vitae(), config, default_labels(7))
    export_into(bundle)
    return bundle


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_a_graph_is_served_without_torch(serving: Serve, graph_bundle: Path, backend: str) -> None:
    expected = answers_of_torch(serving, graph_bundle)
    assert answers(serving, {"graph": graph_bundle}, backend=backend) == (backend, expected)


@pytest.mark.skipif(kernels_refusal() is not None, reason=str(kernels_refusal()))
@pytest.mark.slow_beyond(1)
def test_a_program_is_served_without_torch(serving: Serve, program_bundle: Path) -> None:
    opened = open_model(program_bundle).pipeline
    pictures = [encoded(format, seed=1) for format in ("JPEG", "PNG", "WEBP")]
    expected = [each.index[0] for each in opened.classify(pictures, top_k=1)]
    opened.close()
    assert answers(serving, {"ours": program_bundle}, backend="milkweed", dtype="auto") == ("milkweed", expected)


def answers_of_torch(serving: Serve, bundle: Path) -> list[int]:
    """The best class of the three images by torch."""
    with serving({"x": bundle}, backend="torch", page=False) as server:
        server.wait_ready()
        posted = [
            httpx.post(server.url + "/classify", content=encoded(format, seed=1)) for format in ("JPEG", "PNG", "WEBP")
        ]
        return [answer.json()["results"][0]["predictions"][0]["index"] for answer in posted]


def test_a_server_of_weights_does_import_torch(serving: Serve, tiny_bundle: Path) -> None:
    """So the tests above can fail."""
    with serving({"tiny": tiny_bundle}, fresh=True, prelude=WITHOUT_TORCH) as server:
        assert server.exit() == 77
        assert "imported: torch\n" in server.log


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("command", [["--help"], ["serve", "--help"], ["config", "show"], ["doctor", "--json"]])
def test_commands_that_need_no_torch_import_none(command: list[str]) -> None:
    code = f"{WITHOUT_TORCH}\nfrom milkweed.cli import main\nsys.exit(main({json.dumps(command)}))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 77, done.stderr
    assert done.stdout
