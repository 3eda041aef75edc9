"""Every fault by its name, and why the alerts that none of them makes are not made."""

from collections.abc import Mapping

from ..answers import Key
from .engine import ENGINE_FAULTS
from .fault import Fault, ticket
from .files import FILE_FAULTS
from .load import LOAD_FAULTS
from .process import PROCESS_FAULTS

FAULTS: Mapping[str, Fault] = {
    fault.name: fault for fault in (*ENGINE_FAULTS, *LOAD_FAULTS, *PROCESS_FAULTS, *FILE_FAULTS)
}

_GPU = "needs a GPU"

NOT_MADE: Mapping[Key, str] = {
    ticket("LatencyBudgetBurn"): "a few slow batches make others wait, so the page comes first; see ErrorBudgetBurn",
    ticket("ScrapeSlow"): "means scrapes of more than 2 s; here each is given one",
    ticket("GpuMemoryNearLimit"): _GPU,
    ticket("GpuMemoryGrowing"): _GPU,
}

NOISE = (ticket("EventLoopLag"),)
"""Fires for one late tick in a window of seconds: on a busy machine it says nothing."""
