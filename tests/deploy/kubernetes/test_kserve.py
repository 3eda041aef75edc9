"""The runtime of KServe and the InferenceService that asks for it: deploy/kubernetes/kserve."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from milkweed.models.bundle.config import FORMAT
from milkweed.server.config.settings import Settings
from milkweed.server.config.sources import load_settings
from milkweed.server.process.http_server import LAST_REQUEST_SECONDS
from milkweed.server.process.side_ports import DRAIN_MARGIN_SECONDS
from milkweed.server.telemetry.tracer import FLUSH_SECONDS

from .conftest import KUBERNETES, Manifests
from .test_schemas import SCHEMAS, mistakes

FOLDER = KUBERNETES / "kserve"
POD_SECONDS = 30  # Kubernetes' own terminationGracePeriodSeconds, which a runtime cannot set


@pytest.fixture(scope="module")
def runtime(kustomize_folder: Callable[[Path], str]) -> dict[str, Any]:
    """The spec of the runtime, as it is rendered."""
    made = Manifests(kustomize_folder(FOLDER))
    assert len(made.documents) == 1
    document = made.one("ClusterServingRuntime")
    assert document["apiVersion"] == "serving.kserve.io/v1alpha1"
    assert "namespace" not in document["metadata"]  # it is the cluster's
    assert document["metadata"]["labels"] == document["spec"]["labels"]
    return dict(document["spec"])


@pytest.fixture(scope="module")
def container(runtime: dict[str, Any]) -> dict[str, Any]:
    (container,) = runtime["containers"]
    return dict(container)


@pytest.fixture
def settings(container: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What the server makes of options and variables."""
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    monkeypatch.setenv("MILKWEED_HOST", "0.0.0.0")  # of the image
    options = [argument.removeprefix("--").partition("=") for argument in container["args"][2:]]
    return load_settings({name.replace("-", "_"): value for name, _, value in options})


def test_it_fits_the_definition_and_a_mistake_in_it_does_not(runtime: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the extra `test` is not installed")
    own, of_pods = SCHEMAS["ClusterServingRuntime"], SCHEMAS["InferenceService"]["properties"]["predictor"]
    shared = {name: of_pods["properties"][name] for name in ("containers", "volumes")}
    schema = jsonschema.Draft202012Validator({**own, "properties": {**own["properties"], **shared}})
    schema.validate(runtime)
    wrong = list(mistakes(runtime, "ClusterServingRuntime"))
    assert len(wrong) > 100
    for path, spec in wrong:
        assert not schema.is_valid(spec), path


def test_it_takes_bundles_and_speaks_two_protocols(runtime: dict[str, Any], container: dict[str, Any]) -> None:
    (format,) = runtime["supportedModelFormats"]
    assert format == {"name": "milkweed", "version": str(FORMAT), "autoSelect": True}
    assert {"v1", "v2"} == set(runtime["protocolVersions"])
    assert container["name"] == "kserve-container"  # by which KServe finds the server's


def test_pods_of_it_fit_the_schema_of_kubernetes(runtime: dict[str, Any]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="the schemas of Kubernetes are not installed")
    spec = {name: runtime[name] for name in ("containers", "volumes")}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "predictor", "labels": runtime["labels"]}}
    validate.validate({**pod, "spec": spec}, validate.latest_version(), strict=True)


def test_the_server_is_that_of_the_light_overlay(kustomize: Any, container: dict[str, Any], runtime: Any) -> None:
    light = kustomize("light")
    same = ("image", "imagePullPolicy", "resources", "securityContext", "volumeMounts")
    same += ("startupProbe", "readinessProbe", "livenessProbe")
    assert {name: container[name] for name in same} == {name: light.server[name] for name in same}
    assert runtime["volumes"] == light.pod["volumes"]
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    assert environment.items() <= light.environment.items()


def test_settings_are_what_kserve_asks_for(
    settings: Settings, container: dict[str, Any], runtime: dict[str, Any]
) -> None:
    assert container["args"][:2] == ["serve", "{{.Name}}=/mnt/models"]
    assert settings.compat.split(",") == ["kserve-v1"]
    assert [(port["name"], port["containerPort"]) for port in container["ports"]] == [("http", settings.port)]
    assert settings.port == 8080
    assert not settings.grpc_port  # the image has none, and grpc-v2 is not among the protocols
    assert runtime["annotations"] == {
        "prometheus.kserve.io/port": str(settings.metrics_port),
        "prometheus.kserve.io/path": "/metrics",
    }
    seconds = settings.drain_grace_seconds + settings.drain_seconds
    assert seconds + LAST_REQUEST_SECONDS + DRAIN_MARGIN_SECONDS + FLUSH_SECONDS < POD_SECONDS


def test_the_example_asks_for_it(runtime: dict[str, Any]) -> None:
    document = yaml.safe_load((FOLDER / "inferenceservice.yaml").read_text(encoding="utf-8"))
    assert (document["apiVersion"], document["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    assert document["metadata"]["annotations"] == {"serving.kserve.io/deploymentMode": "Standard"}
    (model,) = document["spec"]["predictor"].values()
    assert document["spec"].keys() == {"predictor"}
    assert document["spec"]["predictor"].keys() == {"model"}
    assert model.keys() == {"modelFormat", "storageUri"}
    assert model["modelFormat"]["name"] == runtime["supportedModelFormats"][0]["name"]
