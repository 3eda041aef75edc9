"""Every document fits its schema: Kubernetes' own from a package, those of custom resources from crds.json.

Of a trigger's metadata, which no schema knows, the fields that are used here.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import COMBINATIONS

CUSTOM = {
    "ServiceMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "ScaledObject": "keda.sh/v1alpha1",
    "InterceptorRoute": "http.keda.sh/v1beta1",
    "InferenceService": "serving.kserve.io/v1beta1",
}

# Real definitions; where they are from and what is cut is in the file.
SCHEMAS = json.loads(Path(__file__).with_name("crds.json").read_text(encoding="utf-8"))

# The oldest that the manifests are for; the newest is that whose schemas the package has.
OLDEST = "1.32"

# Each field of a trigger with its type, of WORDS with its value; `?` where it may be missing.
WORDS = {"type", "metricType", "ignoreNullValues"}
TRIGGERS = {
    # https://keda.sh/docs/latest/scalers/prometheus/: all of a trigger's metadata are strings
    "prometheus": """type=prometheus name=str metricType?=Value metricType?=AverageValue metadata.serverAddress=str
        metadata.query=str metadata.threshold=str metadata.ignoreNullValues=false""",
    "external-push": "type=external-push name=str metadata.scalerAddress=str metadata.interceptorRoute=str",
}

# In these any names may be.
FREE = {"labels", "annotations", "matchLabels", "nodeSelector", "requests", "limits", "metadata"}


def fields(value: Any, where: str = "") -> set[str]:
    """Return the path of every value with its type, or of WORDS with the value."""
    if isinstance(value, dict):
        return {field for name, inner in value.items() for field in fields(inner, f"{where}.{name}".lstrip("."))}
    return {f"{where}={value if where.rpartition('.')[2] in WORDS else type(value).__name__}"}


def mistakes(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the value of a key with a mistake in it, every one in turn: a name misspelt, a value of another type."""
    yield f"{key}: of another type", {bool: "true", int: 1.5, str: True}.get(type(value), [[]])
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from ((f"{key}.{path}", {**value, name: wrong}) for path, wrong in mistakes(inner, name))
            if key not in FREE:
                correct = {other: value[other] for other in value if other != name}
                yield f"{key}.{name}: misspelt", {**correct, f"{name}s": inner}
    if isinstance(value, list):
        yield from ((f"{key}[]{path}", [wrong]) for inner in value for path, wrong in mistakes(inner))


def test_custom_resources_fit(manifests: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the extra `test` is not installed")
    for document in manifests.documents:
        kind, spec = document["kind"], document.get("spec", {})
        if kind not in CUSTOM:
            continue
        assert document["apiVersion"] == CUSTOM[kind]
        assert document.keys() == {"apiVersion", "kind", "metadata", "spec"}
        jsonschema.Draft202012Validator(SCHEMAS[kind]).validate(spec)  # validate() checks the schema each time
        for trigger in spec.get("triggers", ()):
            known = {field.replace("?", ""): "?" in field for field in TRIGGERS[trigger["type"]].split()}
            used = fields(trigger)
            assert used <= known.keys(), f"{trigger['name']}: unknown"
            assert {field for field, optional in known.items() if not optional} <= used, f"{trigger['name']}: missing"


@pytest.mark.slow
def test_a_mistake_in_a_custom_resource_does_not_fit(kustomize: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the extra `test` is not installed")
    renders = [kustomize(*names) for names in COMBINATIONS if {"scale-to-zero", "monitoring", "kserve"} & {*names}]
    documents = [document for render in renders for document in render.documents if document["kind"] in CUSTOM]
    assert (
        {document["kind"] for document in documents}
        == CUSTOM.keys()
        == SCHEMAS.keys() - {"$comment", "ClusterServingRuntime"}
    )
    wrong = {
        json.dumps([document["kind"], spec], sort_keys=True): path
        for document in documents
        for path, spec in mistakes(document["spec"], document["kind"])
    }
    for text, path in wrong.items():
        kind, spec = json.loads(text)
        assert not jsonschema.Draft202012Validator(SCHEMAS[kind]).is_valid(spec), path


def test_kserve_makes_a_deployment_and_an_autoscaler(kustomize: Any) -> None:
    made = kustomize("kserve")
    annotations = {"deploymentMode": "Standard", "autoscalerClass": "hpa"}
    expected = {f"serving.kserve.io/{name}": value for name, value in annotations.items()}
    assert made.one("InferenceService")["metadata"]["annotations"] == expected
    assert made.predictor["scaleMetric"] == "cpu"
    assert made.predictor["scaleTarget"] < 100
    assert 2 <= made.predictor["minReplicas"] < made.predictor["maxReplicas"]


def test_every_document_fits_its_schema(kustomize: Any) -> None:
    """Each once, strictly: a field that Kubernetes does not know is a mistake."""
    validate = pytest.importorskip("kubernetes_validate", reason="the schemas of Kubernetes are not installed")
    renders = [kustomize(*names) for names in COMBINATIONS]
    documents = [document for render in renders for document in render.documents if document["kind"] not in CUSTOM]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "predictor"}}
    documents += [{**pod, "spec": render.pod} for render in renders if not render.of("Deployment")]
    different = {json.dumps(document, sort_keys=True): document for document in documents}
    for document in different.values():
        for version in (OLDEST, validate.latest_version()):
            validate.validate(document, version, strict=True)
