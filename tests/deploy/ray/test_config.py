"""deploy/ray: times that fit each other, settings that the server knows, keys that Ray knows."""

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from milkweed.server.config.settings import Settings
from milkweed.server.config.sources import SettingsError

from .conftest import RAY, ROOT

CONFIG = yaml.safe_load((RAY / "serve.yaml").read_text(encoding="utf-8"))
SERVICE = yaml.safe_load((RAY / "rayservice.yaml").read_text(encoding="utf-8"))
[APPLICATION] = CONFIG["applications"]
[DEPLOYMENT] = APPLICATION["deployments"]
CPUS = DEPLOYMENT["ray_actor_options"]["num_cpus"]
ENVIRONMENT: dict[str, str] = DEPLOYMENT["ray_actor_options"]["runtime_env"]["env_vars"]
WAIT_LOOP_SECONDS = 2  # Ray's default of graceful_shutdown_wait_loop_s

# Keys of our file against the fields of Ray's models, which read over what they do not know.
UNKNOWN_KEYS = """
import json, sys
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import (
    DeploymentSchema, HTTPOptionsSchema, RayActorOptionsSchema, ServeApplicationSchema, ServeDeploySchema
)
config = json.load(sys.stdin)
ServeDeploySchema.model_validate(config)
[application] = config["applications"]
[deployment] = application["deployments"]
parts = (
    (ServeDeploySchema, config), (HTTPOptionsSchema, config["http_options"]), (ServeApplicationSchema, application),
    (DeploymentSchema, deployment), (AutoscalingConfig, deployment["autoscaling_config"]),
    (RayActorOptionsSchema, deployment["ray_actor_options"]),
)
AutoscalingConfig.model_validate(deployment["autoscaling_config"])
print(json.dumps([key for model, part in parts for key in part if key not in model.model_fields]))
"""


@pytest.fixture
def settings(settings_of: Callable[[dict[str, str]], Settings]) -> Settings:
    """What a replica's environment makes."""
    assert {type(value) for value in ENVIRONMENT.values()} == {str}, "Ray takes text alone"
    return settings_of(ENVIRONMENT)


class Serve:
    """Stands for `ray.serve` and keeps the options of the deployment."""

    options: dict[str, Any]

    def deployment(self, **options: Any) -> Any:
        self.options = options
        return lambda _: self

    def ingress(self, build: Any) -> Any:
        return lambda replica: replica

    def bind(self) -> "Serve":
        return self


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the adapter's module."""
    monkeypatch.setitem(sys.modules, "ray", type(sys)("ray"))
    monkeypatch.setattr(sys.modules["ray"], "serve", Serve(), raising=False)
    return runpy.run_path(str(RAY / "milkweed_ray.py"))


def test_what_the_config_names_is_there(adapter: dict[str, Any]) -> None:
    assert APPLICATION["import_path"] == "milkweed_ray:app"
    assert isinstance(adapter["app"], Serve)
    assert DEPLOYMENT["name"] in (RAY / "milkweed_ray.py").read_text(encoding="utf-8").split("class ")[1]


def test_the_replica_has_the_last_word_before_ray_refuses_gives_up_or_kills_it(
    settings: Settings, adapter: dict[str, Any]
) -> None:
    options, longest = adapter["serve"].options, settings.max_timeout_ms / 1e3
    assert options["max_ongoing_requests"] >= 2 * settings.max_queue_images
    assert options["backpressure_config"] == {"status_code": 503, "retry_after_s": 1}
    assert options["graceful_shutdown_timeout_s"] > longest + 2 * WAIT_LOOP_SECONDS
    assert CONFIG["http_options"]["request_timeout_s"] > longest + WAIT_LOOP_SECONDS


def test_a_replica_takes_the_threads_that_it_has_reserved(settings: Settings) -> None:
    assert settings.decode_threads == settings.lanes * settings.threads_per_lane == CPUS


def test_sockets_that_a_replica_does_not_have_are_refused_and_not_set(
    settings: Settings, adapter: dict[str, Any]
) -> None:
    adapter["refuse_sockets"](settings)
    for name, value in (("grpc_port", 9), ("admin_port", 9), ("tls_cert", "a.pem")):
        with pytest.raises(SettingsError, match=f"MILKWEED_{name.upper()} = .*: a replica behind Ray Serve has no"):
            adapter["refuse_sockets"](settings.model_copy(update={name: value}))


def test_it_scales_on_what_the_cluster_scales_on() -> None:
    scaled = yaml.safe_load((ROOT / "deploy/kubernetes/components/autoscale/scaledobject.yaml").read_text("utf-8"))
    [in_flight] = [each for each in scaled["spec"]["triggers"] if each["name"] == "in-flight"]
    ours, theirs = DEPLOYMENT["autoscaling_config"], scaled["spec"]
    assert ours["target_ongoing_requests"] == float(in_flight["metadata"]["threshold"])
    assert (ours["min_replicas"], ours["max_replicas"]) == (theirs["minReplicaCount"], theirs["maxReplicaCount"])


def test_the_ray_service_is_the_same_config() -> None:
    assert (SERVICE["apiVersion"], SERVICE["kind"]) == ("ray.io/v1", "RayService")
    assert yaml.safe_load(SERVICE["spec"]["serveConfigV2"]) == CONFIG
    cluster = SERVICE["spec"]["rayClusterConfig"]
    assert f"ray[serve]=={cluster['rayVersion']}" in (ROOT / "docs" / "ray.md").read_text(encoding="utf-8")
    assert cluster["authOptions"] == {"mode": "token"}, "who reaches Ray's ports could run anything"
    [workers] = cluster["workerGroupSpecs"]
    pod = workers["template"]["spec"]
    assert pod["enableServiceLinks"] is False
    [container] = pod["containers"]
    ports = [port["containerPort"] for port in container["ports"]]
    replicas = int(container["resources"]["limits"]["cpu"]) // CPUS
    assert ports == [int(ENVIRONMENT["MILKWEED_METRICS_PORT"]) + place for place in range(replicas)]
    autoscaling = DEPLOYMENT["autoscaling_config"]
    assert workers["minReplicas"] * replicas >= autoscaling["min_replicas"]
    assert workers["maxReplicas"] * replicas >= autoscaling["max_replicas"]


def test_pods_of_the_ray_service_fit_their_schema() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    cluster = SERVICE["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, **group["template"]}
        validate.validate(pod, "1.32", strict=True)


def test_ray_knows_every_key(ray_here: None, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", UNKNOWN_KEYS],
        input=json.dumps(CONFIG),
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
