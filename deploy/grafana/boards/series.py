"""Queries of the server's series, limited to what the dashboard's variables choose."""

# Prometheus adds `namespace` and `pod` in Kubernetes alone; `.*` also matches a label that is not there.
TARGET = 'namespace=~"$namespace",job=~"$job",instance=~"$instance"'
MODEL = 'model=~"$model"'
VERSION = 'version=~"$version"'
DEVICE = 'device=~"$device"'
ANSWERED = 'outcome="ok"'
# What brings images; probes and pages would only dilute it.
INFERENCE = 'route=~"/classify|/v2/models/.+/infer"'

REPLICA = "pod, instance"
REPLICA_LEGEND = "{{pod}} {{instance}}"
ENGINE = f"{REPLICA}, device"
ENGINE_LEGEND = f"{REPLICA_LEGEND} {{{{device}}}}"

WINDOW = "[$__rate_interval]"


def series(name: str, *matchers: str) -> str:
    """A series of the chosen servers; `up`, `process_*` and `milkweed_*` all have their labels."""
    return f"{name}{{{','.join((TARGET, *matchers))}}}"


def recorded(name: str) -> str:
    """A recorded series of the chosen jobs (deploy/prometheus/rules/recording.yml), which knows no single server."""
    return f'job:milkweed_{name}{{namespace=~"$namespace",job=~"$job"}}'


def recorded_share(part: str, whole: str) -> str:
    """A share of 30 days' requests, of recorded rates: an idle hour weighs nothing."""
    return share(*(f"sum(sum_over_time({recorded(f'{name}:rate5m')}[30d]))" for name in (part, whole)))


def rate(name: str, *matchers: str) -> str:
    """A counter's growth a second."""
    return f"rate({series(name, *matchers)}{WINDOW})"


def total(inner: str, by: str = "") -> str:
    """The sum, by labels where they are given."""
    return f"sum by ({by}) ({inner})" if by else f"sum({inner})"


def most(inner: str, by: str = "") -> str:
    """The largest, by labels where they are given."""
    return f"max by ({by}) ({inner})" if by else f"max({inner})"


def share(part: str, whole: str) -> str:
    """A ratio that has no value, instead of NaN, where there is nothing to divide by."""
    return f"{part} / ({whole} > 0)"


def quantile(which: float, histogram: str, *matchers: str, by: str = "") -> str:
    """A quantile of a histogram, by labels where they are given."""
    return f"histogram_quantile({which}, {buckets(histogram, *matchers, by=by)})"


def buckets(histogram: str, *matchers: str, by: str = "") -> str:
    """What fell into each bucket a second."""
    labels = f"le, {by}" if by else "le"
    return total(rate(f"{histogram}_bucket", *matchers), labels)


def mean(histogram: str, *matchers: str, by: str = "") -> str:
    """The mean of a histogram, by labels where they are given."""
    part, whole = (total(rate(f"{histogram}_{end}", *matchers), by) for end in ("sum", "count"))
    return share(part, whole)


def dcgm(name: str) -> str:
    """A figure of dcgm-exporter for the GPUs that the chosen servers have.

    The exporter names the pod that a GPU was given to; where there are no pods both sides have no such label, and every
    GPU of the exporter is shown.
    """
    return f'{name}{{Hostname=~"$node",gpu=~"$gpu"}} and on (namespace, pod) {series("milkweed_build_info")}'
