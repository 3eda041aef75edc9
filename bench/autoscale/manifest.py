"""What is deployed, read from the manifests, so that the simulation and they cannot drift apart."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .hpa import Kind, Metric, Policy, Rules, Scaling

COMPONENTS = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "components"
SCALED_OBJECT = COMPONENTS / "autoscale" / "scaledobject.yaml"
PLAIN_HPA = COMPONENTS / "hpa" / "horizontalpodautoscaler.yaml"


def scaled_object(path: Path = SCALED_OBJECT) -> Scaling:
    """KEDA's; its metrics have the triggers' names.

    Raises:
        OSError, ValueError: not there, or not what is simulated: windows of 1 m, the 95th percentile.
    """
    spec = _load(path)["spec"]
    metrics = []
    for trigger in spec["triggers"]:
        query = trigger["metadata"]["query"]
        settings = {*re.findall(r"\[(\w+)\]", query), *re.findall(r"histogram_quantile\(([\d.]+)", query)}
        if trigger["type"] != "prometheus" or settings - {"1m", "0.95"}:
            raise ValueError(f"{path}: trigger {trigger['name']}: only Prometheus, [1m] and 0.95 are simulated")
        kind: Kind = "Value" if trigger.get("metricType") == "Value" else "AverageValue"
        metrics.append(Metric(trigger["name"], kind, float(trigger["metadata"]["threshold"])))
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    return _scaling((spec["minReplicaCount"], spec["maxReplicaCount"]), behavior, metrics)


def plain_hpa(path: Path = PLAIN_HPA) -> Scaling:
    """The one on CPU load.

    Raises:
        OSError: not there.
    """
    spec = _load(path)["spec"]
    (metric,) = spec["metrics"]
    target = Metric("cpu", "Utilization", metric["resource"]["target"]["averageUtilization"] / 100)
    return _scaling((spec["minReplicas"], spec["maxReplicas"]), spec["behavior"], [target])


def _load(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise ImportError(f"the manifests are YAML: pip install 'milkweed[bench]' ({error})") from error
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def _scaling(bounds: tuple[int, int], behavior: Mapping[str, Any], metrics: list[Metric]) -> Scaling:
    return Scaling(*bounds, _rules(behavior["scaleUp"]), _rules(behavior["scaleDown"]), metrics)


def _rules(found: Mapping[str, Any]) -> Rules:
    policies = [Policy(each["type"], each["value"], each["periodSeconds"]) for each in found["policies"]]
    return Rules(found["stabilizationWindowSeconds"], policies)
