"""Reports what a run of `compress` or `train` did, found and cost, for a person and for programs."""

from .charts import plot_report
from .document import Candidate, DataUse, LayerRow, Measured, Role, RunReport, Skipped, Totals
from .files import check_report_packages, read_report, write_report
from .frontier import Frontier
from .frontier_chart import plot_frontier

__all__ = [
    "Candidate",
    "DataUse",
    "Frontier",
    "LayerRow",
    "Measured",
    "Role",
    "RunReport",
    "Skipped",
    "Totals",
    "check_report_packages",
    "plot_frontier",
    "plot_report",
    "read_report",
    "write_report",
]
