"""Every document fits its schema: Kubernetes' own from a package, of custom resources the fields that are used here."""

import json
from typing import Any

import pytest

CUSTOM = {
    "ServiceMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "ScaledObject": "keda.sh/v1alpha1",
    "InterceptorRoute": "http.keda.sh/v1beta1",
    "InferenceService": "serving.kserve.io/v1beta1",
}

# The oldest that the manifests are for, and the newest whose schemas the package has.
OLDEST = "1.32"

STRINGS = {str: str}  # any keys
BEHAVIOR = {
    "stabilizationWindowSeconds": int,
    "policies": [{"type": {"Percent", "Pods"}, "value": int, "periodSeconds": int}],
}
MONITOR = {
    "jobLabel?": str,
    "namespaceSelector?": {"matchNames": [str]},
    "selector": {"matchLabels": STRINGS},
    "endpoints": [{"port": str, "path": str, "interval": str, "scrapeTimeout": str, "honorLabels?": bool}],
}
RULE = {
    "record?": str,
    "alert?": str,
    "expr": str,
    "for?": str,
    "keep_firing_for?": str,
    "labels?": STRINGS,
    "annotations?": STRINGS,
}
SCALED = {
    "scaleTargetRef": {"apiVersion": str, "kind": str, "name": str},
    "minReplicaCount": int,
    "maxReplicaCount": int,
    "cooldownPeriod?": int,
    "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleUp": BEHAVIOR, "scaleDown": BEHAVIOR}}},
    "triggers": [dict],
}
# https://keda.sh/docs/latest/scalers/prometheus/: all of a trigger's metadata are strings
PROMETHEUS = {"serverAddress": str, "query": str, "threshold": str, "ignoreNullValues": {"true", "false"}}
TRIGGERS = {
    "prometheus": {"type": str, "name": str, "metricType": {"Value", "AverageValue"}, "metadata": PROMETHEUS},
    "external-push": {"type": str, "name": str, "metadata": {"scalerAddress": str, "interceptorRoute": str}},
}
# https://keda.sh/http-add-on/latest/reference/interceptorroute/, the fields that are used
ROUTE = {
    "target": {"service": str, "portName": str},
    "rules": [{"hosts": [str]}],
    "scalingMetric": {"concurrency": {"targetValue": int}},
    "timeouts": {"readiness": str},
}
SHAPES = {
    "ServiceMonitor": MONITOR,
    "PrometheusRule": {"groups": [{"name": str, "interval?": str, "limit?": int, "rules": [RULE]}]},
    "ScaledObject": SCALED,
    "InterceptorRoute": ROUTE,
}


def misfits(value: Any, shape: Any, where: str = "spec") -> list[str]:
    """Where a value is not of a shape: a dict of keys (`?`: may be missing), [of each], a set of words, or a type."""
    if isinstance(shape, type):
        return [] if type(value) is shape else [f"{where}: {value!r}"]
    if isinstance(shape, set):
        return [] if value in shape else [f"{where}: {value!r}"]
    if isinstance(shape, list):
        if not isinstance(value, list) or not value:
            return [f"{where}: {value!r}"]
        return [line for place, each in enumerate(value) for line in misfits(each, shape[0], f"{where}[{place}]")]
    if not isinstance(value, dict):
        return [f"{where}: {value!r}"]
    if str in shape:
        return [line for key, each in value.items() for line in misfits(each, shape[str], f"{where}.{key}")]
    known = {key.removesuffix("?"): inner for key, inner in shape.items()}
    found = [f"{where}: no {key}" for key in shape if not key.endswith("?") and key not in value]
    found += [f"{where}.{key}: unknown" for key in value.keys() - known.keys()]
    for key in value.keys() & known.keys():
        found += misfits(value[key], known[key], f"{where}.{key}")
    return found


def test_custom_resources_fit(manifests: Any) -> None:
    for document in manifests.documents:
        kind = document["kind"]
        if kind in CUSTOM:
            assert document["apiVersion"] == CUSTOM[kind]
            assert document.keys() == {"apiVersion", "kind", "metadata", "spec"}
        if kind in SHAPES:
            assert misfits(document["spec"], SHAPES[kind]) == []
        for trigger in document.get("spec", {}).get("triggers", []):
            assert misfits(trigger, TRIGGERS[trigger["type"]], "trigger") == []
        for rule in (rule for group in document.get("spec", {}).get("groups", []) for rule in group["rules"]):
            assert ("record" in rule) != ("alert" in rule)


def test_an_inference_service_is_a_pod_and_a_few_fields_of_kserve(kustomize: Any) -> None:
    service = kustomize("kserve").one("InferenceService")
    annotations = {"deploymentMode": "Standard", "autoscalerClass": "hpa"}
    assert service["metadata"]["annotations"] == {
        f"serving.kserve.io/{name}": value for name, value in annotations.items()
    }
    assert service["spec"].keys() == {"predictor"}
    kserves = {"labels": STRINGS, "minReplicas": int, "maxReplicas": int, "scaleMetric": {"cpu"}, "scaleTarget": int}
    predictor = {key: value for key, value in service["spec"]["predictor"].items() if key in kserves}
    assert misfits(predictor, kserves) == []


def test_every_document_fits_its_schema(kustomize: Any) -> None:
    """Each once, strictly: a field that Kubernetes does not know is a mistake."""
    validate = pytest.importorskip("kubernetes_validate", reason="the schemas of Kubernetes are not installed")
    renders = [
        kustomize("cpu", "monitoring", "models-oci", "hpa"),
        kustomize("gpu", "monitoring", "dcgm", "models-pvc", "autoscale"),
        kustomize("gpu-mig"),
        kustomize("cpu", "models-objectstore"),
        kustomize("cpu", "grpc"),
        kustomize("cpu", "scale-to-zero"),
        kustomize("kserve"),
    ]
    documents = [each for render in renders for each in render.documents if each["kind"] not in CUSTOM]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "predictor"}, "spec": renders[-1].pod}
    different = {json.dumps(each, sort_keys=True): each for each in (*documents, pod)}.values()
    assert {"Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "PersistentVolumeClaim"} <= {
        each["kind"] for each in different
    }
    for version in (OLDEST, validate.latest_version()):
        for each in different:
            validate.validate(each, version, strict=True)
