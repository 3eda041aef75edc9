"""deploy/ray: times that fit each other, settings that the server knows, keys that Ray knows."""

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from milkweed.server.config.settings import Settings
from milkweed.server.config.sources import SettingsError

from .conftest import RAY, ROOT

CONFIG = yaml.safe_load((RAY / "serve.yaml").read_text(encoding="utf-8"))
SERVICE = yaml.safe_load((RAY / "rayservice.yaml").read_text(encoding="utf-8"))
CLUSTER = SERVICE["spec"]["rayClusterConfig"]
[APPLICATION] = CONFIG["applications"]
[DEPLOYMENT] = APPLICATION["deployments"]
AUTOSCALING, ACTOR = DEPLOYMENT["autoscaling_config"], DEPLOYMENT["ray_actor_options"]
ENVIRONMENT: dict[str, str] = ACTOR["runtime_env"]["env_vars"]
WAIT_LOOP_SECONDS = 2  # Ray's default of graceful_shutdown_wait_loop_s

# Prints the keys of our file that Ray's models do not know, which they read over.
UNKNOWN_KEYS = """
import json, sys
from ray.serve import config, schema
whole = json.load(sys.stdin)
schema.ServeDeploySchema.model_validate(whole)
[application] = whole["applications"]
[deployment] = application["deployments"]
for model, part in (
    (schema.ServeDeploySchema, whole), (schema.HTTPOptionsSchema, whole["http_options"]),
    (schema.ServeApplicationSchema, application), (schema.DeploymentSchema, deployment),
    (schema.RayActorOptionsSchema, deployment["ray_actor_options"]),
    (config.AutoscalingConfig, deployment["autoscaling_config"]),
):
    model.model_validate(part)
    print(*(key for key in part if key not in model.model_fields), end="")
"""


@pytest.fixture
def settings(settings_of: Callable[[dict[str, str]], Settings]) -> Settings:
    """What a replica's environment makes."""
    assert {type(value) for value in ENVIRONMENT.values()} == {str}, "Ray takes text alone"
    return settings_of(ENVIRONMENT)


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the adapter's module, with a `ray` that keeps the options of the deployment as `options`."""
    options: dict[str, Any] = {}

    def deployment(**given: Any) -> Callable[[Any], Any]:
        options.update(given)
        return lambda replica: SimpleNamespace(bind=lambda: replica)

    ray = type(sys)("ray")
    ray.serve = SimpleNamespace(deployment=deployment, ingress=lambda build: lambda replica: (build, replica))
    monkeypatch.setitem(sys.modules, "ray", ray)
    return runpy.run_path(str(RAY / "milkweed_ray.py")) | {"options": options}


def test_what_the_config_names_is_there(adapter: dict[str, Any]) -> None:
    module, _, name = APPLICATION["import_path"].partition(":")
    assert (RAY / f"{module}.py").is_file()
    build, replica = adapter[name]
    assert (build, replica.__name__) == (adapter["build"], DEPLOYMENT["name"])


def test_the_replica_has_the_last_word_before_ray_refuses_gives_up_or_kills_it(
    settings: Settings, adapter: dict[str, Any]
) -> None:
    options, longest = adapter["options"], settings.max_timeout_ms / 1e3
    assert options["max_ongoing_requests"] >= 2 * settings.max_queue_images
    assert options["backpressure_config"] == {"status_code": 503, "retry_after_s": 1}
    assert options["graceful_shutdown_timeout_s"] > longest + 2 * WAIT_LOOP_SECONDS
    assert CONFIG["http_options"]["request_timeout_s"] > longest + WAIT_LOOP_SECONDS


def test_a_replica_takes_the_threads_that_it_has_reserved(settings: Settings) -> None:
    assert settings.decode_threads == settings.lanes * settings.threads_per_image == ACTOR["num_cpus"]


def test_sockets_that_a_replica_does_not_have_are_refused_and_not_set(
    settings: Settings, adapter: dict[str, Any]
) -> None:
    adapter["refuse_sockets"](settings)
    for name, value in (("grpc_port", 9), ("admin_port", 9), ("tls_cert", "a.pem")):
        with pytest.raises(SettingsError, match=f"MILKWEED_{name.upper()} = .*: a replica behind Ray Serve has no"):
            adapter["refuse_sockets"](settings.model_copy(update={name: value}))


def test_it_scales_on_what_the_cluster_scales_on() -> None:
    scaled = yaml.safe_load((ROOT / "deploy/kubernetes/components/autoscale/scaledobject.yaml").read_text("utf-8"))
    [in_flight] = [trigger for trigger in scaled["spec"]["triggers"] if trigger["name"] == "in-flight"]
    assert AUTOSCALING["target_ongoing_requests"] == float(in_flight["metadata"]["threshold"])
    replicas = (AUTOSCALING["min_replicas"], AUTOSCALING["max_replicas"])
    assert replicas == (scaled["spec"]["minReplicaCount"], scaled["spec"]["maxReplicaCount"])


def test_the_ray_service_is_the_same_config_and_has_room_for_the_replicas() -> None:
    assert (SERVICE["apiVersion"], SERVICE["kind"]) == ("ray.io/v1", "RayService")
    assert yaml.safe_load(SERVICE["spec"]["serveConfigV2"]) == CONFIG
    assert f"ray[serve]=={CLUSTER['rayVersion']}" in (ROOT / "docs" / "ray.md").read_text(encoding="utf-8")
    assert CLUSTER["authOptions"] == {"mode": "token"}, "who reaches Ray's ports could run anything"
    [workers] = CLUSTER["workerGroupSpecs"]
    pod = workers["template"]["spec"]
    assert pod["enableServiceLinks"] is False
    [container] = pod["containers"]
    replicas = int(container["resources"]["limits"]["cpu"]) // ACTOR["num_cpus"]
    first = int(ENVIRONMENT["MILKWEED_METRICS_PORT"])
    assert [port["containerPort"] for port in container["ports"]] == list(range(first, first + replicas))
    for side in ("min", "max"):
        assert workers[f"{side}Replicas"] * replicas >= AUTOSCALING[f"{side}_replicas"]


def test_pods_of_the_ray_service_fit_their_schema() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for group in (CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, **group["template"]}
        validate.validate(pod, "1.32", strict=True)


def test_ray_knows_every_key(environment: dict[str, str]) -> None:
    command, sent = [sys.executable, "-W", "ignore", "-c", UNKNOWN_KEYS], json.dumps(CONFIG)
    ran = subprocess.run(command, input=sent, env=environment, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
