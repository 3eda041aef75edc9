"""Every document fits its schema: Kubernetes' own from a package, those of custom resources from crds.json.

Of what no schema knows (a trigger's metadata) or none could be had for, the fields that are used here.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import COMBINATIONS, Document

CUSTOM = {
    "ServiceMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "ScaledObject": "keda.sh/v1alpha1",
    "InterceptorRoute": "http.keda.sh/v1beta1",
    "InferenceService": "serving.kserve.io/v1beta1",
}

# Real definitions, trimmed; where they are from is in the file.
SCHEMAS = json.loads(Path(__file__).with_name("crds.json").read_text(encoding="utf-8"))

# The oldest that the manifests are for; the newest is that whose schemas the package has.
OLDEST = "1.32"

# Each field with its type, of WORDS with its value; `?` where it may be missing. In FREE any keys may be.
WORDS, FREE = {"type", "scaleMetric", "metricType", "ignoreNullValues"}, {"labels", "annotations", "matchLabels"}
KNOWN = {
    # https://keda.sh/docs/latest/scalers/prometheus/: all of a trigger's metadata are strings
    "prometheus": """type=prometheus name=str metricType?=Value metricType?=AverageValue metadata.serverAddress=str
        metadata.query=str metadata.threshold=str metadata.ignoreNullValues=false""",
    "external-push": "type=external-push name=str metadata.scalerAddress=str metadata.interceptorRoute=str",
    # https://keda.sh/http-add-on/latest/reference/interceptorroute/
    "InterceptorRoute": """target.service=str target.portName=str rules[].hosts[]=str
        scalingMetric.concurrency.targetValue=int timeouts.readiness=str""",
    # What KServe knows beside the pod.
    "InferenceService": "labels.*=str minReplicas=int maxReplicas=int scaleMetric=cpu scaleTarget=int",
}


def fields(value: Any, where: str = "") -> set[str]:
    """Return the path of every plain value with its type, or of WORDS with the value."""
    key = where.rpartition(".")[2]
    if isinstance(value, dict):
        paths = {name: f"{where}.{'*' if key in FREE else name}".lstrip(".") for name in value}
        return {field for name, inner in value.items() for field in fields(inner, paths[name])}
    if isinstance(value, list):
        return {field for inner in value for field in fields(inner, where + "[]")}
    return {f"{where}={value if key in WORDS else type(value).__name__}"}


def shapes(kind: str, spec: Document) -> Iterator[tuple[str, Document]]:
    """Yield what KNOWN describes of a custom resource."""
    if kind in KNOWN:
        yield kind, spec
    yield from ((trigger["type"], trigger) for trigger in spec.get("triggers", ()))


def test_custom_resources_fit(manifests: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the extra `test` is not installed")
    for document in manifests.documents:
        kind, spec = document["kind"], document.get("spec", {})
        if kind not in CUSTOM:
            continue
        assert document["apiVersion"] == CUSTOM[kind]
        assert document.keys() == {"apiVersion", "kind", "metadata", "spec"}
        if kind in SCHEMAS:
            jsonschema.validate(spec, SCHEMAS[kind])
        if kind == "InferenceService":
            assert spec.keys() == {"predictor"}
            spec = {key: value for key, value in spec["predictor"].items() if key not in manifests.pod}
        for name, part in shapes(kind, spec):
            known = {field.replace("?", ""): "?" in field for field in KNOWN[name].split()}
            used = fields(part)
            assert used <= known.keys(), f"{name}: unknown"
            assert {field for field, optional in known.items() if not optional} <= used, f"{name}: missing"


def test_every_custom_resource_is_held_to_something() -> None:
    assert SCHEMAS.keys() - {"$comment"} | KNOWN.keys() >= CUSTOM.keys()


def test_kserve_makes_a_deployment_and_an_autoscaler(kustomize: Any) -> None:
    annotations = {"deploymentMode": "Standard", "autoscalerClass": "hpa"}
    expected = {f"serving.kserve.io/{name}": value for name, value in annotations.items()}
    assert kustomize("kserve").one("InferenceService")["metadata"]["annotations"] == expected


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
