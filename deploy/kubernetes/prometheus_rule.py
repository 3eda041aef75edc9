"""Writes components/monitoring/prometheusrule.yaml, the rules of deploy/prometheus/rules as one PrometheusRule."""

from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
RULES = HERE.parent / "prometheus" / "rules"
TARGET = HERE / "components" / "monitoring" / "prometheusrule.yaml"

RUNBOOK = "https://milkweed.example/runbook.html"
"""Where the rules say that the runbook is, which nobody serves: a replacement (docs/kubernetes.md) puts yours there."""

HEADER = """\
# Made of deploy/prometheus/rules/*.yml by `python deploy/kubernetes/prometheus_rule.py`: change those.
"""


class _Dumper(yaml.SafeDumper):
    """Text of several lines as such."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def prometheus_rule(rules: Path = RULES) -> str:
    """The manifest of all rule files in a folder, in the order of their names."""
    groups = [group for file in sorted(rules.glob("*.yml")) for group in yaml.safe_load(file.read_text())["groups"]]
    manifest: dict[str, Any] = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "milkweed",
            "annotations": {"runbook": RUNBOOK},
            "labels": {
                "app.kubernetes.io/name": "milkweed",
                "app.kubernetes.io/component": "server",
                "app.kubernetes.io/part-of": "milkweed",
            },
        },
        "spec": {"groups": groups},
    }
    return HEADER + yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


if __name__ == "__main__":
    TARGET.write_text(prometheus_rule(), encoding="utf-8")
