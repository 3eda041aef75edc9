"""The kinds of panels that the dashboards are made of; no panel is without a unit and a description."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as dashboard_model
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from .series import TARGET
from .variables import SOURCE

T = TypeVar("T")
Panel = Builder[dashboard_model.Panel]

# Not faster than Prometheus scrapes.
REFRESH = "30s"
# A row below these begins closed: its queries are asked when somebody opens it.
OPEN_ROWS = 2

IMAGES = "suffix: images"
IMAGES_A_SECOND = "suffix: images/s"


class Query(NamedTuple):
    """What is asked of Prometheus, and how a series of the answer is called."""

    expr: str
    legend: str


def lines(
    title: str,
    unit: str,
    text: str,
    *queries: Query,
    span: int = 8,
    stacked: bool = False,
    least: float | None = 0,
    top: float | None = None,
    dashed: str | None = None,
) -> timeseries.Panel:
    """Values over time.

    Args:
        unit: as Grafana spells it.
        span: of 24 columns.
        stacked: areas upon each other.
        least, top: where the axis begins and ends.
        dashed: name of the series that is a limit, not a measurement.
    """
    panel = (
        _framed(timeseries.Panel(), title, unit, text, 8, span)
        .targets(_targets(queries))
        .line_width(1)
        .fill_opacity(45 if stacked else 8)
        .show_points(common_model.VisibilityMode.NEVER)
        .stacking(
            common.StackingConfig().mode(
                common_model.StackingMode.NORMAL if stacked else common_model.StackingMode.NONE
            )
        )
        .legend(
            common.VizLegendOptions()
            .display_mode(common_model.LegendDisplayMode.LIST)
            .placement(common_model.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull"])
        )
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_model.TooltipDisplayMode.MULTI)
            .sort(common_model.SortOrder.DESCENDING)
        )
    )
    if least is not None:
        panel.min(least)
    if top is not None:
        panel.max(top)
    if dashed is not None:
        panel.override_by_name(dashed, _LIMIT)
    return panel


def warmth(title: str, unit: str, text: str, query: str, *, span: int = 12) -> heatmap.Panel:
    """A histogram's buckets over time, as colours.

    Args:
        query: a rate by `le`.
    """
    return (
        _framed(heatmap.Panel(), title, unit, text, 8, span)
        .targets([_target(0, Query(query, "{{le}}")).format(PromQueryFormat.HEATMAP)])
        .calculate(False)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_model.HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .scale(heatmap_model.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
        )
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .rows_frame(heatmap.RowsHeatmapOptions().layout(common_model.HeatmapCellLayout.AUTO))
        .y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(common_model.AxisPlacement.LEFT))
        .cell_values(heatmap.CellValues().unit("reqps"))
        .cell_gap(1)
        .show_legend()
    )


def figure(
    title: str,
    unit: str,
    text: str,
    query: str,
    *,
    span: int = 4,
    steps: Sequence[tuple[float, str]] = (),
    legend: str = "",
    decimals: int | None = None,
    base: str = "green",
) -> stat.Panel:
    """The last value, large.

    Args:
        steps: from which value on it has which colour.
        base: the colour below the first step.
    """
    colours = [dashboard_model.Threshold(value=None, color=base)]
    colours += [dashboard_model.Threshold(value=value, color=colour) for value, colour in steps]
    panel = (
        _framed(stat.Panel(), title, unit, text, 4, span)
        .targets(_targets([Query(query, legend)]))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(common_model.BigValueGraphMode.AREA)
        .color_mode(common_model.BigValueColorMode.VALUE)
        .thresholds(dashboard.ThresholdsConfig().mode(dashboard_model.ThresholdsMode.ABSOLUTE).steps(colours))
    )
    return panel if decimals is None else panel.decimals(decimals)


def listing(title: str, text: str, query: str, columns: Sequence[str], *, span: int = 16) -> table.Panel:
    """What is there now, a row a series.

    Args:
        columns: the labels that are shown, in this order.
    """
    return (
        _framed(table.Panel(), title, "none", text, 8, span)
        .targets([_target(0, Query(query, "")).format(PromQueryFormat.TABLE).instant()])
        .with_transformation(
            dashboard_model.DataTransformerConfig(
                id_val="filterFieldsByName", options={"include": {"names": list(columns)}}
            )
        )
        .with_transformation(
            dashboard_model.DataTransformerConfig(
                id_val="organize", options={"indexByName": {column: place for place, column in enumerate(columns)}}
            )
        )
    )


def board(
    uid: str,
    title: str,
    text: str,
    variables: Sequence[Builder[dashboard_model.VariableModel]],
    rows: Sequence[tuple[str, Sequence[Panel]]],
) -> dashboard_model.Dashboard:
    """A dashboard of rows of panels, each under its title; panels are numbered in their order. Lines across all panels
    mark when another version of a model, or of milkweed, began to answer."""
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(text)
        .tags(["milkweed"])
        .editable()
        .tooltip(dashboard_model.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh(REFRESH)
        .timezone("browser")
        .variables(list(variables))
        .link(
            dashboard.DashboardLink("milkweed")
            .type(dashboard_model.DashboardLinkType.DASHBOARDS)
            .tags(["milkweed"])
            .as_dropdown(False)
            .include_vars(True)
            .keep_time(True)
        )
    )
    for place, (heading, panels) in enumerate(rows):
        row = dashboard.Row(heading)
        if place >= OPEN_ROWS:
            for panel in panels:
                row.with_panel(panel)
        made.with_row(row)
        if place < OPEN_ROWS:
            for panel in panels:
                made.with_panel(panel)
    whole = made.build()
    whole.annotations = dashboard_model.AnnotationContainer(
        list_val=[
            _VersionChange("milkweed_model_info", "model, version", "{{model}} {{version}}", "blue"),
            _VersionChange("milkweed_build_info", "version", "milkweed {{version}}", "purple"),
        ]
    )
    number = 0
    for panel in whole.panels or []:
        for inner in (panel, *(panel.panels if isinstance(panel, dashboard_model.RowPanel) else ())):
            inner.id_val = number = number + 1
    return whole


class _VersionChange(dashboard_model.AnnotationQuery):
    """A mark where a series has labels that it did not have before; the SDK's class knows no title.

    Args:
        by: the labels, separated by commas.
    """

    def __init__(self, series: str, by: str, title: str, colour: str) -> None:
        now, before = (f"count by ({by}) ({series}{{{TARGET}}}{offset})" for offset in ("", " offset 5m"))
        expr = f"{now} unless {before}"
        super().__init__(name=title, datasource=SOURCE, enable=True, icon_color=colour, expr=expr)

    def to_json(self) -> dict[str, object]:
        """The query as JSON that Grafana's Prometheus data source reads."""
        return {**super().to_json(), "titleFormat": self.name}


def _framed(panel: T, title: str, unit: str, text: str, height: int, span: int) -> T:
    """What every kind of panel has."""
    made: Any = panel
    made.title(title).description(text).datasource(SOURCE).unit(unit).height(height).span(span)
    return panel


def _targets(queries: Sequence[Query]) -> list[Builder[Dataquery]]:
    return [_target(place, query) for place, query in enumerate(queries)]


def _target(place: int, query: Query) -> prometheus.Dataquery:
    target = prometheus.Dataquery().ref_id(chr(ord("A") + place)).expr(query.expr).datasource(SOURCE).range()
    return target.legend_format(query.legend) if query.legend else target


_LIMIT = [
    dashboard_model.DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [8, 6]}),
    dashboard_model.DynamicConfigValue(id_val="custom.fillOpacity", value=0),
    dashboard_model.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": "red"}),
]
