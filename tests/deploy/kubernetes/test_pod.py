"""The pod: as restricted as can be, with settings that the server understands, and time and memory that it needs."""

import json
import re
from pathlib import Path
from typing import Any

from milkweed.server.config.settings import Settings
from milkweed.server.process.http_server import LAST_REQUEST_SECONDS
from milkweed.server.process.side_ports import DRAIN_MARGIN_SECONDS
from milkweed.server.telemetry.tracer import FLUSH_SECONDS

from .conftest import ROOT

PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
UNITS = {"": 1, "m": 1e-3, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
UID = 65532  # of the Dockerfile
USER = {"runAsNonRoot": True, "runAsUser": UID, "runAsGroup": UID, "seccompProfile": {"type": "RuntimeDefault"}}
# A slice takes the place of a GPU.
GPUS = {"gpu": {"nvidia.com/gpu": 1}, "gpu-mig": {"nvidia.com/mig-1g.18gb": 1}}
# https://kubernetes.io/docs/concepts/security/pod-security-standards/, level restricted; `image` since 1.33.
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected"}
VOLUMES |= {"secret"}


def quantity(text: str | int) -> float:
    """A quantity of Kubernetes as a number."""
    match = re.fullmatch(r"([0-9.]+)(m|[KMG]i|)", str(text))
    assert match, text
    return float(match[1]) * UNITS[match[2]]


def test_it_is_restricted(manifests: Any) -> None:
    """The security contexts are those of the strictest Pod Security Standard, and say a bit more."""
    pod = manifests.pod
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert pod["securityContext"] == {**USER, "fsGroup": UID, "fsGroupChangePolicy": "OnRootMismatch"}
    assert {key for volume in pod["volumes"] for key in volume} - {"name"} <= VOLUMES
    rights = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    for container in manifests.containers:
        assert container["securityContext"] == {**USER, **rights}
        assert not [port for port in container.get("ports", []) if "hostPort" in port]
    assert pod["automountServiceAccountToken"] is False
    assert manifests.one("ServiceAccount", pod["serviceAccountName"])["automountServiceAccountToken"] is False
    assert not [kind for document in manifests.documents if "Role" in (kind := document["kind"]) or kind == "Secret"]
    (namespace,) = manifests.of("Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_images_have_a_fixed_tag(manifests: Any) -> None:
    images = [container["image"] for container in manifests.containers]
    images += [volume["image"]["reference"] for volume in manifests.pod["volumes"] if "image" in volume]
    for image in images:
        name, _, tag = image.rpartition(":")
        assert name, image
        assert tag not in ("", "latest"), image


def test_ports_are_those_of_the_settings(manifests: Any, settings: Settings) -> None:
    ports = {port["name"]: port["containerPort"] for port in manifests.server["ports"]}
    grpc = {"grpc": settings.grpc_port} if settings.grpc_port else {}
    assert bool(grpc) == ("grpc" in manifests.names)
    defaults = Settings()  # those of docs and image
    assert (settings.host, settings.admin_port) == ("0.0.0.0", 0)
    assert (settings.port, settings.metrics_port) == (defaults.port, defaults.metrics_port)
    assert ports == {"http": settings.port, "metrics": settings.metrics_port, **grpc}
    service = {port["name"]: (port["port"], port["targetPort"]) for port in manifests.one("Service")["spec"]["ports"]}
    assert service == {name: (number, name) for name, number in ports.items()}


def test_nothing_but_the_environment_makes_settings(manifests: Any) -> None:
    assert manifests.server["args"] == ["serve"]
    assert "command" not in manifests.server  # the image's entrypoint, which gets the signals itself
    assert manifests.pod["enableServiceLinks"] is False  # or the Service milkweed makes a variable MILKWEED_PORT
    (source,) = manifests.server["envFrom"]
    # The hash of the content: a changed setting is a rollout.
    assert re.fullmatch(r"milkweed-\w{10}", source["configMapRef"]["name"])


def test_what_is_written_can_be(manifests: Any, settings: Settings) -> None:
    mounts = [mount for mount in manifests.server["volumeMounts"] if not mount.get("readOnly")]
    writable = {mount["mountPath"]: manifests.volumes[mount["name"]] for mount in mounts}
    assert set(writable) == {"/tmp", "/cache"}
    assert all(volume["emptyDir"]["sizeLimit"] for volume in writable.values())
    for path in (manifests.environment["HOME"], settings.tuning_cache):
        assert any(Path(path).is_relative_to(folder) for folder in writable), path


def test_models_come_from_where_the_server_looks(manifests: Any, settings: Settings) -> None:
    mounts = {mount["name"]: mount for mount in manifests.server["volumeMounts"]}
    volume = manifests.volumes.get("models", {})
    # Only a folder that changes is looked at again.
    assert bool(settings.repository_seconds) == ("persistentVolumeClaim" in volume)
    if settings.repository == "off":
        assert "models" not in mounts  # the demo, from the image
        return
    assert mounts["models"] == {"name": "models", "mountPath": settings.repository, "readOnly": True}
    if "emptyDir" not in volume:
        return
    (fetch,) = manifests.pod["initContainers"]
    assert settings.repository in fetch["args"]
    assert {"name": "models", "mountPath": settings.repository} in fetch["volumeMounts"]
    assert "envFrom" not in fetch, "what the Secret says is a file, and the server's container does not have it"
    (secret,) = (name for name, volume in manifests.volumes.items() if "secret" in volume)
    (config,) = (Path(each.partition("=")[2]) for each in fetch["args"] if each.startswith("--config="))
    assert {"name": secret, "mountPath": str(config.parent), "readOnly": True} in fetch["volumeMounts"]
    assert secret not in mounts


def test_a_gpu_is_asked_for_exactly_where_one_is_used(manifests: Any, settings: Settings) -> None:
    pod, limits = manifests.pod, manifests.server["resources"]["limits"]
    gpus = GPUS.get(manifests.names[0], {})
    assert {name: count for name, count in limits.items() if name.startswith("nvidia.com/")} == gpus
    assert settings.device == ("cuda:all" if gpus else "cpu")
    if not gpus:
        assert "nodeSelector" not in pod
        return
    assert settings.dtype == "auto"  # two bytes a number, which the kernels need
    assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]


def test_each_probe_asks_its_own_route(manifests: Any) -> None:
    routes = re.findall(r'@router\.get\("(/\w+)"', (ROOT / "server/api/status.py").read_text(encoding="utf-8"))
    for name, path in (("startupProbe", "/startupz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")):
        # The metrics port knows nothing of the event loop, nor of /startupz.
        assert manifests.server[name]["httpGet"] == {"path": path, "port": "http"}
        assert path in routes


def test_there_is_time_for_the_whole_shutdown(manifests: Any, settings: Settings) -> None:
    longest = settings.drain_grace_seconds + settings.drain_seconds
    longest += LAST_REQUEST_SECONDS + DRAIN_MARGIN_SECONDS + FLUSH_SECONDS
    allowed = manifests.pod["terminationGracePeriodSeconds"]
    assert allowed >= longest + 5
    assert settings.drain_grace_seconds >= 5, "endpoints need a moment to be removed everywhere"
    assert "lifecycle" not in manifests.server, "a preStop hook would come on top"
    assert f"| {longest:g} |" in PAGE
    assert f"| {allowed} |" in PAGE


def test_a_hung_engine_is_restarted_and_a_busy_one_is_not(manifests: Any, settings: Settings) -> None:
    probe = manifests.server["livenessProbe"]
    patience, stall = probe["periodSeconds"] * probe["failureThreshold"], settings.engine_stall_seconds
    assert probe["timeoutSeconds"] < probe["periodSeconds"]
    assert 20 <= patience <= stall, "the server's own patience comes first"
    # Several devices: what is in flight on the others is answered before the restart.
    assert "terminationGracePeriodSeconds" not in probe
    assert f"{stall + patience:g} s" in PAGE


def test_a_rollout_waits_longer_than_a_start(manifests: Any) -> None:
    probe = manifests.server["startupProbe"]
    budget = probe["periodSeconds"] * probe["failureThreshold"]
    assert budget == (900 if "nodeSelector" in manifests.pod else 300)
    # Requests that are held wait for the start: it is noticed each second, and given up with the probe.
    held = manifests.of("InterceptorRoute")
    assert (probe["periodSeconds"] == 1) == bool(held)
    assert [route["spec"]["timeouts"]["readiness"] for route in held] == [f"{budget}s"] * len(held)
    for deployment in manifests.of("Deployment"):
        assert deployment["spec"]["progressDeadlineSeconds"] > budget
        # No spare GPU is needed.
        surge, unavailable = (0, 1) if "nodeSelector" in manifests.pod else (1, 0)
        rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
        assert deployment["spec"]["strategy"]["rollingUpdate"] == rolling


def test_memory_is_what_was_measured_and_what_settings_allow(manifests: Any, settings: Settings) -> None:
    resident = resident_bytes(light=manifests.server["image"].endswith("-light"))
    requests, limits = (manifests.server["resources"][name] for name in ("requests", "limits"))
    assert quantity(requests["memory"]) >= resident + settings.max_held_bytes + 3 * settings.max_batch_pixels
    assert requests["memory"] == limits["memory"], "or a node runs out of it first"
    # It takes as many threads as the quota has cores, rounded up: a part of one would be throttled.
    assert requests["cpu"] == limits["cpu"]
    assert quantity(limits["cpu"]).is_integer()


def resident_bytes(light: bool) -> float:
    """What was measured under load: with PyTorch, or without it on our CPU kernels."""
    name = "served" if light else "server_deit"
    rows = json.loads((ROOT / f"bench/results/{name}.json").read_text(encoding="utf-8"))["rows"]
    if light:
        return float(max(row["rss_mb_of_32"] for row in rows if "--backend milkweed" in row["server"])) * 1e6
    return float(max(value for row in rows for value in row["rss_mb"])) * 1e6


def test_volumes_fit_into_the_storage_that_is_asked_for(manifests: Any) -> None:
    sizes = [quantity(each["emptyDir"]["sizeLimit"]) for each in manifests.pod["volumes"] if "emptyDir" in each]
    for container in manifests.containers:
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert requests.keys() >= {"cpu", "memory", "ephemeral-storage"}
        assert all(quantity(requests[name]) <= quantity(limits[name]) for name in requests)
    assert sum(sizes) <= quantity(manifests.server["resources"]["limits"]["ephemeral-storage"])
