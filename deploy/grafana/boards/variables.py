"""The variables of the dashboards; each limits those after it."""

from collections.abc import Iterable

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableOption, VariableRefresh, VariableSort

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")


def datasource() -> build.DatasourceVariable:
    """The Prometheus to ask."""
    return build.DatasourceVariable("datasource").label("Data source").type("prometheus")


def servers() -> list[build.QueryVariable]:
    """The servers to show: namespace, job, instance."""
    return [
        label("namespace", "Namespace", "milkweed_build_info", "namespace"),
        # Without `.*`: `up` exists for every job, and All shall mean those that are milkweed.
        label("job", "Job", "milkweed_build_info", "job", 'namespace=~"$namespace"', everything=False),
        label("instance", "Instance", "milkweed_build_info", "instance", 'namespace=~"$namespace"', 'job=~"$job"'),
    ]


def model() -> build.QueryVariable:
    """The models to show."""
    return label("model", "Model", "milkweed_model_info", "model", *_CHOSEN)


def version() -> build.QueryVariable:
    """The versions of these models to show."""
    return label("version", "Version", "milkweed_model_info", "version", *_CHOSEN, 'model=~"$model"')


def device() -> build.QueryVariable:
    """The devices to show, as the server calls them: cpu, cuda:0."""
    return label("device", "Device", "milkweed_engine_up", "device", *_CHOSEN)


def gpus() -> list[build.QueryVariable]:
    """The nodes and GPUs to show, as dcgm-exporter calls them."""
    return [
        label("node", "Node", "DCGM_FI_DEV_GPU_UTIL", "Hostname"),
        label("gpu", "GPU", "DCGM_FI_DEV_GPU_UTIL", "gpu", 'Hostname=~"$node"'),
    ]


def label(name: str, title: str, series: str, of: str, *matchers: str, everything: bool = True) -> build.QueryVariable:
    """The values that a label has on a series, all of them chosen at first.

    Args:
        everything: All also means series without the label.
    """
    chosen = f"{series}{{{','.join(matchers)}}}" if matchers else series
    variable = (
        build.QueryVariable(name)
        .label(title)
        .datasource(SOURCE)
        .query(f"label_values({chosen}, {of})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
    )
    return variable.all_value(".*") if everything else variable


def choice(name: str, title: str, values: Iterable[str], first: str) -> build.CustomVariable:
    """One of a closed set."""
    values = list(values)
    return (
        build.CustomVariable(name)
        .label(title)
        .values(",".join(values))
        .options([VariableOption(selected=value == first, text=value, value=value) for value in values])
        .current(VariableOption(selected=True, text=first, value=first))
    )


def number(name: str, title: str, text: str, value: str) -> build.TextBoxVariable:
    """A number that a person writes."""
    option = VariableOption(selected=True, text=value, value=value)
    return (
        build.TextBoxVariable(name)
        .label(title)
        .description(text)
        .default_value(value)
        .current(option)
        .options([option])
    )


_CHOSEN = ('namespace=~"$namespace"', 'job=~"$job"', 'instance=~"$instance"')
