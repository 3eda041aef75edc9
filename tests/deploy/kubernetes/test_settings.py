"""What the manifests say to the server is what the server understands."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from milkweed.server.config.settings import Settings

CONTAINER_FILES = {"/tmp", "/cache"}
ANY_POD = {"namespaceSelector": {}}


def test_every_setting_is_one(manifests: Any, settings_of: Callable[[dict[str, str]], Any]) -> None:
    names = {name.removeprefix("MILKWEED_").lower() for name in manifests.settings}
    assert names - set(Settings.model_fields) == set()
    settings = settings_of(manifests.settings)  # raises where a value cannot be
    assert settings.host == "0.0.0.0"
    assert settings.device in ("cpu", "cuda:all")


def test_the_ports_are_those_of_the_settings(manifests: Any, settings_of: Callable[[dict[str, str]], Any]) -> None:
    settings = settings_of(manifests.settings)
    ports = {port["name"]: port["containerPort"] for port in manifests.server["ports"]}
    grpc = {"grpc": settings.grpc_port} if settings.grpc_port else {}
    assert ports == {"http": settings.port, "metrics": settings.metrics_port, **grpc}
    defaults = Settings()
    assert (ports["http"], ports["metrics"]) == (defaults.port, defaults.metrics_port), "not those of docs and image"
    service = {port["name"]: (port["port"], port["targetPort"]) for port in manifests.one("Service")["spec"]["ports"]}
    assert service == {name: (number, name) for name, number in ports.items()}
    assert not settings.admin_port


def test_grpc_is_open_where_it_is_asked_for(kustomize: Any) -> None:
    assert "MILKWEED_GRPC_PORT" not in kustomize("cpu").settings
    made = kustomize("cpu", "grpc")
    assert made.settings["MILKWEED_GRPC_PORT"] == "8003"
    open_to_all = [each for each in made.one("NetworkPolicy")["spec"]["ingress"] if each["from"] == [ANY_POD]]
    assert [[port["port"] for port in each["ports"]] for each in open_to_all] == [["http", "grpc"]]


def test_nothing_but_the_environment_makes_settings(manifests: Any) -> None:
    assert manifests.server["args"] == ["serve"]
    assert "command" not in manifests.server  # the image's entrypoint, which gets the signals itself
    assert manifests.pod["enableServiceLinks"] is False
    assert manifests.one("Service")["metadata"]["name"] == "milkweed"  # whose variable would be MILKWEED_PORT


def test_what_is_written_can_be(manifests: Any, settings_of: Callable[[dict[str, str]], Any]) -> None:
    settings = settings_of(manifests.settings)
    volumes = {volume["name"]: volume for volume in manifests.pod["volumes"]}
    writable = {
        mount["mountPath"]: volumes[mount["name"]]
        for mount in manifests.server["volumeMounts"]
        if not mount.get("readOnly")
    }
    assert set(writable) == CONTAINER_FILES
    assert all(volume["emptyDir"]["sizeLimit"] for volume in writable.values())
    home = next(each["value"] for each in manifests.server["env"] if each["name"] == "HOME")
    for path in (home, settings.tuning_cache):
        assert any(Path(path).is_relative_to(folder) for folder in writable), path


def test_models_come_from_where_the_server_looks(manifests: Any, settings_of: Callable[[dict[str, str]], Any]) -> None:
    settings = settings_of(manifests.settings)
    mounts = {mount["name"]: mount for mount in manifests.server["volumeMounts"]}
    if settings.repository == "off":
        assert "models" not in mounts  # the demo, from the image
        return
    assert mounts["models"]["mountPath"] == settings.repository
    assert mounts["models"]["readOnly"] is True
    (volume,) = (volume for volume in manifests.pod["volumes"] if volume["name"] == "models")
    if "emptyDir" not in volume:
        return
    (fetch,) = manifests.pod["initContainers"]
    assert settings.repository in fetch["args"]
    assert {"name": "models", "mountPath": settings.repository} in fetch["volumeMounts"]
    assert "envFrom" not in fetch, "what the Secret says is a file, and the server's container does not have it"
    (secret,) = (volume["name"] for volume in manifests.pod["volumes"] if "secret" in volume)
    (config,) = (Path(each.partition("=")[2]) for each in fetch["args"] if each.startswith("--config="))
    assert {"name": secret, "mountPath": str(config.parent), "readOnly": True} in fetch["volumeMounts"]
    assert secret not in mounts


def test_only_a_folder_that_changes_is_looked_at(manifests: Any, settings_of: Callable[[dict[str, str]], Any]) -> None:
    claims = [volume for volume in manifests.pod["volumes"] if "persistentVolumeClaim" in volume]
    assert bool(settings_of(manifests.settings).repository_seconds) == bool(claims)


def test_a_gpu_is_asked_for_exactly_where_one_is_used(
    manifests: Any, settings_of: Callable[[dict[str, str]], Any]
) -> None:
    settings = settings_of(manifests.settings)
    gpus = {name: n for name, n in manifests.server["resources"]["limits"].items() if name.startswith("nvidia.com/")}
    if settings.device == "cpu":
        assert not gpus
        assert "nodeSelector" not in manifests.pod
        return
    assert settings.device == "cuda:all"
    assert settings.dtype == "auto"  # two bytes a number, which the kernels need
    assert list(gpus.values()) == [1]
    assert manifests.pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in manifests.pod["tolerations"]


def test_a_slice_takes_the_place_of_a_gpu(kustomize: Any) -> None:
    whole = kustomize("gpu").server["resources"]["limits"]
    sliced = kustomize("gpu-mig").server["resources"]["limits"]
    assert whole["nvidia.com/gpu"] == 1
    assert sliced["nvidia.com/mig-1g.18gb"] == 1
    assert "nvidia.com/gpu" not in sliced
