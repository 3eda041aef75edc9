"""What a run of `compress` or `train` did, found and cost: report.html for a person, report.json for programs."""

from .document import Candidate, DataUse, LayerRow, Measured, RunReport, Skipped, Totals
from .picture import plot_report
from .report import check_report_packages, read_report, write_report

__all__ = [
    "Candidate",
    "DataUse",
    "LayerRow",
    "Measured",
    "RunReport",
    "Skipped",
    "Totals",
    "check_report_packages",
    "plot_report",
    "read_report",
    "write_report",
]
