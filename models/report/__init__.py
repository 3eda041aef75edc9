"""Reports what a run of `compress` or `train` did, found and cost, for a person and for programs.

A name's module is imported when the name is first used: a server reads frontiers alone.
"""

from typing import TYPE_CHECKING

from ...kernels.lazy_names import lazy_names

if TYPE_CHECKING:
    from .document import DataUse as DataUse
    from .document import LayerRow as LayerRow
    from .document import Measured as Measured
    from .document import Role as Role
    from .document import RunReport as RunReport
    from .document import Skipped as Skipped
    from .document import Totals as Totals
    from .files import check_report_packages as check_report_packages
    from .files import read_report as read_report
    from .files import write_report as write_report
    from .frontier import Frontier as Frontier
    from .frontier_chart import plot_frontier as plot_frontier

_HOMES = {
    "document": ("DataUse", "LayerRow", "Measured", "Role", "RunReport", "Skipped", "Totals"),
    "files": ("check_report_packages", "read_report", "write_report"),
    "frontier": ("Frontier",),
    "frontier_chart": ("plot_frontier",),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _HOMES)
