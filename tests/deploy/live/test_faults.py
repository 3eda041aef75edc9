"""Each fault, made in a real server beside a real Prometheus and Alertmanager: who must be told is told, and no other.

The faults, what each must bring about and how it is timed: bench/alerting, which `python -m milkweed.bench.alerts`
makes the table with.
"""

from pathlib import Path

import pytest

from milkweed.bench.alerting.faults.catalogue import FAULTS
from milkweed.bench.alerting.programs import Programs
from milkweed.bench.alerting.table import head, lines
from milkweed.bench.alerting.trial import trial


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_and_so_is_its_end(name: str, programs: Programs, bundle: Path) -> None:
    found = trial(FAULTS[name], programs, bundle)
    print(head(), *lines(found.as_json()), sep="\n")  # shown where it fails, and with -rP
    assert found.complaints() == []
    for row in found.rows():
        # Pending no shorter than the rule says, looked at five times a second.
        assert row["seconds_until"]["firing"] >= row["for_seconds_here"] - 0.5
