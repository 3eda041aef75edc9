"""deploy/ray: times that fit each other, settings that the server knows, keys that Ray knows."""

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from milkweed.server.config.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
RAY = ROOT / "deploy" / "ray"
ADAPTER = ast.parse((RAY / "milkweed_ray.py").read_text(encoding="utf-8"))
CONFIG = yaml.safe_load((RAY / "serve.yaml").read_text(encoding="utf-8"))
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


def options() -> dict[str, Any]:
    """The options of `@serve.deployment` in the adapter."""
    [decorated] = [node for node in ADAPTER.body if isinstance(node, ast.ClassDef)]
    [call] = [
        each
        for each in decorated.decorator_list
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "serve.deployment"
    ]
    return {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in call.keywords}


def assigned() -> dict[str, ast.expr]:
    """The adapter's own names, by what they are."""
    return {ast.unparse(node.targets[0]): node.value for node in ADAPTER.body if isinstance(node, ast.Assign)}


def test_what_the_config_names_is_there() -> None:
    module, _, name = APPLICATION["import_path"].partition(":")
    assert (RAY / f"{module}.py").is_file()
    assert name in assigned()
    assert DEPLOYMENT["name"] in {node.name for node in ADAPTER.body if isinstance(node, ast.ClassDef)}


def test_the_replica_refuses_before_ray_does(settings: Settings) -> None:
    assert options()["max_ongoing_requests"] >= 2 * settings.max_queue_images
    assert options()["backpressure_config"] == {"status_code": 503, "retry_after_s": 1}


def test_a_request_ends_before_its_replica_is_killed_and_before_ray_gives_up(settings: Settings) -> None:
    longest = settings.max_timeout_ms / 1e3
    assert options()["graceful_shutdown_timeout_s"] > longest + 2 * WAIT_LOOP_SECONDS
    assert CONFIG["http_options"]["request_timeout_s"] > longest + WAIT_LOOP_SECONDS


def test_a_replica_takes_the_threads_that_it_has_reserved(settings: Settings) -> None:
    assert settings.decode_threads == settings.lanes * settings.threads_per_lane == CPUS


def test_nothing_is_set_that_stops_a_replica(settings: Settings) -> None:
    for name in ast.literal_eval(assigned()["SOCKETS"]):
        assert getattr(settings, name) == Settings.model_fields[name].default


def test_it_scales_on_what_the_cluster_scales_on() -> None:
    scaled = yaml.safe_load((ROOT / "deploy/kubernetes/components/autoscale/scaledobject.yaml").read_text("utf-8"))
    [in_flight] = [each for each in scaled["spec"]["triggers"] if each["name"] == "in-flight"]
    ours, theirs = DEPLOYMENT["autoscaling_config"], scaled["spec"]
    assert ours["target_ongoing_requests"] == float(in_flight["metadata"]["threshold"])
    assert (ours["min_replicas"], ours["max_replicas"]) == (theirs["minReplicaCount"], theirs["maxReplicaCount"])


def test_the_ray_service_is_the_same_config() -> None:
    service = yaml.safe_load((RAY / "rayservice.yaml").read_text(encoding="utf-8"))
    assert (service["apiVersion"], service["kind"]) == ("ray.io/v1", "RayService")
    assert yaml.safe_load(service["spec"]["serveConfigV2"]) == CONFIG
    cluster = service["spec"]["rayClusterConfig"]
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


@pytest.mark.parametrize("group", ["headGroupSpec", "workerGroupSpecs"])
def test_pods_of_the_ray_service_fit_their_schema(group: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    service = yaml.safe_load((RAY / "rayservice.yaml").read_text(encoding="utf-8"))
    found = service["spec"]["rayClusterConfig"][group]
    template = (found[0] if isinstance(found, list) else found)["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, **template}
    kubernetes_validate.validate(pod, "1.32", strict=True)


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
