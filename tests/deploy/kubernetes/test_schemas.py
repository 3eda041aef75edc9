"""Every document fits its schema: Kubernetes' own from a package, of custom resources the fields that are used here."""

import json
from collections.abc import Iterator
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

# The oldest that the manifests are for; the newest is that whose schemas the package has.
OLDEST = "1.32"

# Each field with its type, of WORDS with its value; `?` where it may be missing. In FREE any keys may be.
WORDS, FREE = {"type", "scaleMetric", "metricType", "ignoreNullValues"}, {"labels", "annotations", "matchLabels"}
_BEHAVIOR = """{0}.stabilizationWindowSeconds=int {0}.policies[].type=Percent {0}.policies[].value=int
    {0}.policies[].periodSeconds=int """
_RULE = "expr=str labels.*?=str annotations.*?=str "
KNOWN = {
    "ServiceMonitor": """jobLabel?=str namespaceSelector.matchNames[]?=str selector.matchLabels.*=str
        endpoints[].port=str endpoints[].path=str endpoints[].interval=str endpoints[].scrapeTimeout=str
        endpoints[].honorLabels?=bool""",
    "PrometheusRule": "groups[].name=str groups[].interval?=str groups[].limit?=int",
    "record": _RULE + "record=str",
    "alert": _RULE + "alert=str for?=str keep_firing_for?=str",
    "ScaledObject": _BEHAVIOR.format("advanced.horizontalPodAutoscalerConfig.behavior.scaleUp")
    + _BEHAVIOR.format("advanced.horizontalPodAutoscalerConfig.behavior.scaleDown")
    + """scaleTargetRef.apiVersion=str scaleTargetRef.kind=str scaleTargetRef.name=str
        minReplicaCount=int maxReplicaCount=int cooldownPeriod?=int""",
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


def parts(kind: str, spec: Document) -> Iterator[tuple[str, Document]]:
    """Yield a custom resource without its rules and triggers, and these."""
    groups, triggers = spec.get("groups", ()), spec.get("triggers", ())
    for rule in (rule for group in groups for rule in group["rules"]):
        yield "record" if "record" in rule else "alert", rule
    for trigger in triggers:
        yield trigger["type"], trigger
    whole = {key: value for key, value in spec.items() if key != "triggers"}
    yield kind, {"groups": [{**group, "rules": []} for group in groups]} if groups else whole


def test_custom_resources_fit(manifests: Any) -> None:
    for document in manifests.documents:
        kind, spec = document["kind"], document.get("spec", {})
        if kind not in CUSTOM:
            continue
        assert document["apiVersion"] == CUSTOM[kind]
        assert document.keys() == {"apiVersion", "kind", "metadata", "spec"}
        if kind == "InferenceService":
            assert spec.keys() == {"predictor"}
            spec = {key: value for key, value in spec["predictor"].items() if key not in manifests.pod}
        for name, part in parts(kind, spec):
            known = {field.replace("?", ""): "?" in field for field in KNOWN[name].split()}
            used = fields(part)
            assert used <= known.keys(), f"{name}: unknown"
            assert {field for field, optional in known.items() if not optional} <= used, f"{name}: missing"


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
