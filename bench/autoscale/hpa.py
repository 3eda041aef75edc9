"""Hpa: how many replicas Kubernetes' HorizontalPodAutoscaler wants, as its documentation and its controller have it.

https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/ for the algorithm and `behavior`.
KEDA hands its triggers to it as external metrics, in thousandths.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["Value", "AverageValue", "Utilization"]
"""Value: one number for all; AverageValue: a sum, its target for each replica; Utilization: the mean share of all."""

SYNC_SECONDS = 15
"""`--horizontal-pod-autoscaler-sync-period`; KEDA asks Prometheus each time that it is asked."""

TOLERANCE = 0.1
"""`--horizontal-pod-autoscaler-tolerance`: a ratio so close to 1 changes nothing."""


@dataclass(frozen=True)
class Policy:
    """So many pods, or percent of them, in so many seconds at most."""

    type: Literal["Percent", "Pods"]
    value: int
    period_seconds: int


@dataclass(frozen=True)
class Rules:
    """`scaleUp` or `scaleDown`; of several policies the one counts that allows the most change (selectPolicy Max)."""

    stabilization_seconds: int
    policies: Sequence[Policy]


@dataclass(frozen=True)
class Metric:
    """One signal and what it should be."""

    name: str
    kind: Kind
    target: float


@dataclass(frozen=True)
class Scaling:
    """What is set: bounds, rules and metrics."""

    minimum: int
    maximum: int
    up: Rules
    down: Rules
    metrics: Sequence[Metric]

    def following(self, *metrics: Metric) -> "Scaling":
        """With other metrics."""
        return replace(self, metrics=metrics)

    def between(self, minimum: int, maximum: int) -> "Scaling":
        """With other bounds."""
        return replace(self, minimum=minimum, maximum=maximum)


class Hpa:
    """The autoscaler of one Deployment: the state between two looks."""

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._wanted: list[tuple[float, int]] = []  # when, and how many by the metrics alone
        self._changes: list[tuple[float, int]] = []  # when, and how many more (or fewer, below 0)

    def desired(
        self, now: float, current: int, ready: int, values: Mapping[str, float | None], starting: int = 0
    ) -> int:
        """How many replicas there should be from now on; it remembers that they will be.

        Args:
            current: that there should be until now.
            ready: of them, that may serve; `starting`: that are not there yet.
            values: of the metrics by name; None: it could not be read.
        """
        scaling = self._scaling
        if not self._wanted:
            self._wanted.append((now, current))
        if not scaling.minimum <= current <= scaling.maximum:
            wanted = min(max(current, scaling.minimum), scaling.maximum)
        else:
            by_metrics = self._by_metrics(current, ready, starting, values)
            if by_metrics is None:
                return current
            wanted = self._limited(now, current, self._stabilized(now, current, by_metrics))
        if wanted != current:
            self._changes.append((now, wanted - current))
        return wanted

    def _by_metrics(self, current: int, ready: int, starting: int, values: Mapping[str, float | None]) -> int | None:
        """The most that any metric asks for; None where one is unknown and the others would have fewer."""
        metrics = self._scaling.metrics
        known = [(metric, value) for metric in metrics if (value := values[metric.name]) is not None]
        if not known:
            return None
        wanted = max(_proposal(metric, value, current, ready, starting) for metric, value in known)
        return None if len(known) < len(metrics) and wanted < current else wanted

    def _stabilized(self, now: float, current: int, by_metrics: int) -> int:
        """No fewer than the most wanted of late, no more than the least."""
        up = _within(self._wanted, now, self._scaling.up.stabilization_seconds)
        down = _within(self._wanted, now, self._scaling.down.stabilization_seconds)
        self._wanted.append((now, by_metrics))
        return min(max(current, min([by_metrics, *up])), max([by_metrics, *down]))

    def _limited(self, now: float, current: int, wanted: int) -> int:
        """Within the policies and the bounds."""
        if wanted > current:
            return min(wanted, self._scaling.maximum, max(current, self._limit(now, current, self._scaling.up, 1)))
        if wanted < current:
            return max(wanted, self._scaling.minimum, min(current, self._limit(now, current, self._scaling.down, -1)))
        return wanted

    def _limit(self, now: float, current: int, rules: Rules, sign: int) -> int:
        """How far the policies let it go up (1) or down (-1), from where it was when their period began."""
        found: list[int] = []
        for policy in rules.policies:
            before = current - sum(_within(self._changes, now, policy.period_seconds))
            if policy.type == "Pods":
                found.append(before + sign * policy.value)
            elif sign > 0:
                found.append(math.ceil(before * (1 + policy.value / 100)))
            else:
                found.append(int(before * (1 - policy.value / 100)))
        return max(found) if sign > 0 else min(found)


def _proposal(metric: Metric, value: float, current: int, ready: int, starting: int) -> int:
    """What one metric asks for: the replicas times the ratio of what is to what should be, rounded up."""
    if metric.kind == "Utilization":
        return _by_utilization(value / metric.target, current, ready, starting)
    value, target = int(value * 1000), round(metric.target * 1000)
    if metric.kind == "Value":
        ratio = value / target
        return current if abs(1 - ratio) <= TOLERANCE else math.ceil(ratio * ready)
    ratio = value / (target * current)
    return current if abs(1 - ratio) <= TOLERANCE else math.ceil(value / target)


def _by_utilization(ratio: float, current: int, ready: int, starting: int) -> int:
    """Pods that are not ready count as idle, but never turn the direction round."""
    if ratio > 1 and starting:
        ratio, ready = ratio * ready / (ready + starting), ready + starting
        if ratio < 1:
            return current
    return current if abs(1 - ratio) <= TOLERANCE else math.ceil(ratio * ready)


def _within(events: Sequence[tuple[float, int]], now: float, seconds: float) -> list[int]:
    return [number for at, number in events[-_RECENT:] if at > now - seconds]


_RECENT = 3600 // SYNC_SECONDS
"""Of the events, as many as an hour has: no window or period is longer."""
