"""Probes, shutdown, rollouts and resources follow from what the server does and what was measured."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

UNITS = {"": 1, "m": 1e-3, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def quantity(text: str | int) -> float:
    """A quantity of Kubernetes as a number."""
    found = re.fullmatch(r"([0-9.]+)(m|[KMG]i|)", str(text))
    assert found, text
    return float(found[1]) * UNITS[found[2]]


def test_each_probe_asks_its_own_route(manifests: Any, root: Path) -> None:
    routes = set(re.findall(r'@router\.get\("(/\w+)"', (root / "server/api/status.py").read_text(encoding="utf-8")))
    asked = {
        name: manifests.server[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert asked == {"startupProbe": "/startupz", "readinessProbe": "/readyz", "livenessProbe": "/livez"}
    assert set(asked.values()) <= routes
    # The metrics port knows nothing of the event loop, nor of /startupz.
    assert all(manifests.server[name]["httpGet"]["port"] == "http" for name in asked)


def test_there_is_time_for_the_whole_shutdown(
    manifests: Any, settings_of: Callable[[dict[str, str]], Any], constant: Callable[[str, str], float], root: Path
) -> None:
    settings = settings_of(manifests.settings)
    longest = (
        settings.drain_grace_seconds
        + settings.drain_seconds
        + constant("process/http_server.py", "LAST_REQUEST_SECONDS")
        + constant("process/side_ports.py", "DRAIN_MARGIN_SECONDS")
        + constant("telemetry/tracer.py", "FLUSH_SECONDS")
    )
    given = manifests.pod["terminationGracePeriodSeconds"]
    assert given >= longest + 5
    assert settings.drain_grace_seconds >= 5, "endpoints need a moment to be removed everywhere"
    assert "lifecycle" not in manifests.server, "a preStop hook would come on top"
    page = (root / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    assert f"| {longest:g} |" in page
    assert f"| {given} |" in page


def test_a_hung_engine_is_restarted_and_a_busy_one_is_not(
    manifests: Any, settings_of: Callable[[dict[str, str]], Any], root: Path
) -> None:
    probe = manifests.server["livenessProbe"]
    patience = probe["periodSeconds"] * probe["failureThreshold"]
    stall = settings_of(manifests.settings).engine_stall_seconds
    assert probe["timeoutSeconds"] < probe["periodSeconds"]
    assert 20 <= patience <= stall, "the server's own patience comes first"
    # Several devices: what is in flight on the others is answered before the restart.
    assert "terminationGracePeriodSeconds" not in probe
    assert f"{stall + patience:g} s" in (root / "docs" / "kubernetes.md").read_text(encoding="utf-8")


def test_a_rollout_waits_longer_than_a_start(manifests: Any) -> None:
    probe = manifests.server["startupProbe"]
    budget = probe["periodSeconds"] * probe["failureThreshold"]
    assert budget == (900 if "nvidia.com/gpu.present" in manifests.pod.get("nodeSelector", {}) else 300)
    for deployment in manifests.of("Deployment"):
        assert deployment["spec"]["progressDeadlineSeconds"] > budget


def test_a_start_that_requests_wait_for_is_noticed_each_second(kustomize: Any) -> None:
    made = kustomize("cpu", "scale-to-zero")
    probe, usual = made.server["startupProbe"], kustomize("cpu").server["startupProbe"]
    budget = probe["periodSeconds"] * probe["failureThreshold"]
    assert probe["periodSeconds"] == 1
    assert budget == usual["periodSeconds"] * usual["failureThreshold"]
    assert made.one("InterceptorRoute")["spec"]["timeouts"]["readiness"] == f"{budget}s"
    with pytest.raises(AssertionError, match=r"testing value .*failureThreshold failed"):
        kustomize("gpu", "scale-to-zero")


def test_a_rollout_needs_no_spare_gpu(kustomize: Any) -> None:
    def rolling(overlay: str) -> tuple[int, int]:
        update = kustomize(overlay).one("Deployment")["spec"]["strategy"]["rollingUpdate"]
        return update["maxSurge"], update["maxUnavailable"]

    assert rolling("cpu") == (1, 0)
    assert rolling("gpu") == rolling("gpu-mig") == (0, 1)


def test_memory_is_what_was_measured_and_what_settings_allow(
    manifests: Any, settings_of: Callable[[dict[str, str]], Any], root: Path
) -> None:
    settings = settings_of(manifests.settings)
    measured = json.loads((root / "bench/results/server_deit.json").read_text(encoding="utf-8"))
    resident = max(value for row in measured["rows"] for value in row["rss_mb"]) * 1e6
    assert 0.8e9 < resident < 1e9
    needed = resident + settings.max_held_bytes + 3 * settings.max_batch_pixels
    resources = manifests.server["resources"]
    assert quantity(resources["requests"]["memory"]) >= needed
    assert resources["requests"]["memory"] == resources["limits"]["memory"], "or a node runs out of it first"


def test_the_server_is_told_its_cores(manifests: Any) -> None:
    """It takes as many threads as the quota has cores, rounded up: a part of one would be throttled."""
    resources = manifests.server["resources"]
    assert resources["requests"]["cpu"] == resources["limits"]["cpu"]
    assert quantity(resources["limits"]["cpu"]).is_integer()


def test_volumes_fit_into_the_storage_that_is_asked_for(manifests: Any) -> None:
    sizes = [quantity(each["emptyDir"]["sizeLimit"]) for each in manifests.pod["volumes"] if "emptyDir" in each]
    for container in manifests.containers:
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert requests.keys() >= {"cpu", "memory", "ephemeral-storage"}
        assert all(quantity(requests[name]) <= quantity(limits[name]) for name in requests)
    assert sum(sizes) <= quantity(manifests.server["resources"]["limits"]["ephemeral-storage"])
