"""A Ray cluster for the tests, which `ray start` begins and the calls of `serve deploy` tell what to serve."""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from milkweed.bench.ports import free_port
from milkweed.bench.process import running_process

from ...support.forked import environment as bare_environment
from ...support.server import Server, sample_at

ROOT = Path(__file__).resolve().parents[3]
RAY = ROOT / "deploy" / "ray"

CHANGE_SECONDS, END_SECONDS = 300.0, 10.0
APPLICATIONS = "/api/serve/applications/"
CPUS = 3  # of three replicas: none to spare
METRICS_PORTS = 16
QUEUE_IMAGES = 24

Config = dict[str, Any]


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Return variables for processes that import Ray and the adapter; skip the tests that need it without Ray."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'ray[serve]==2.60.0'")
    kept = {name: value for name, value in bare_environment().items() if not name.startswith("RAY_")}
    return kept | {
        "PYTHONPATH": os.pathsep.join([str(RAY), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",  # it listens on this machine alone
        "RAY_memory_monitor_refresh_ms": "0",  # a machine that others fill as well is no reason to kill replicas
    }


class Cluster:
    """What a Ray serves by our config.

    Args:
        port: of Ray's proxy.
        dashboard_port: where Ray is told what to serve.
    """

    def __init__(self, port: int, dashboard_port: int) -> None:
        self.port, self.metrics_port = port, free_port(METRICS_PORTS - 1)
        self.url = f"http://127.0.0.1:{port}"
        self._applications = f"http://127.0.0.1:{dashboard_port}{APPLICATIONS}"

    def config(self, replicas: int = 3, **settings: str) -> Config:
        """Return deploy/ray/serve.yaml, for one small machine."""
        config: Config = yaml.safe_load((RAY / "serve.yaml").read_text(encoding="utf-8"))
        config["http_options"] |= {"host": "127.0.0.1", "port": self.port}
        [deployment] = config["applications"][0]["deployments"]
        del deployment["autoscaling_config"]
        deployment["num_replicas"] = replicas
        deployment["ray_actor_options"]["runtime_env"]["env_vars"] |= {
            "MILKWEED_HOST": "127.0.0.1",
            "MILKWEED_METRICS_PORT": str(self.metrics_port),
            "MILKWEED_MAX_QUEUE_IMAGES": str(QUEUE_IMAGES),
            "MILKWEED_MAX_IMAGES_PER_REQUEST": str(QUEUE_IMAGES),
            **settings,
        }
        return config

    def put(self, config: Config) -> None:
        """Do what `serve deploy` does."""
        httpx.put(self._applications, json=config, timeout=60, trust_env=False).raise_for_status()

    def deploy(self, config: Config, *statuses: str) -> dict[str, Any]:
        """Have it served until the application has one of these statuses; return what Ray says of it."""
        self.put(config)
        self.wait(lambda: self.status()["status"] in statuses)
        return self.status()

    def remove(self) -> None:
        """Take the application out."""
        self.deploy(self.config() | {"applications": []}, "NONE")

    def shutdown(self) -> None:
        """Do what `serve shutdown` does."""
        httpx.delete(self._applications, timeout=60, trust_env=False).raise_for_status()

    def status(self) -> dict[str, Any]:
        """Return what `serve status` says of our application."""
        document = httpx.get(self._applications, timeout=60, trust_env=False).raise_for_status().json()
        application: dict[str, Any] = document["applications"].get("milkweed", {"status": "NONE", "deployments": {}})
        return application

    def replicas(self) -> dict[int, str]:
        """Return the state of each replica by the id of its process."""
        deployment = self.status()["deployments"].get("Milkweed", {"replicas": []})
        return {replica["pid"]: replica["state"] for replica in deployment["replicas"] if "pid" in replica}

    def wait(self, condition: Callable[[], bool], every_seconds: float = 1.0) -> None:
        """Wait until something is so."""
        end = time.monotonic() + CHANGE_SECONDS
        while not condition():
            assert time.monotonic() < end, self.status()
            time.sleep(every_seconds)

    def metrics_urls(self) -> dict[int, str]:
        """Return the URL of each replica's own port by the id of its process."""
        ports = range(self.metrics_port, self.metrics_port + METRICS_PORTS)
        urls = {}
        for pid in self.replicas():
            with contextlib.suppress(psutil.Error):
                for connection in psutil.Process(pid).net_connections("tcp"):
                    if connection.status == psutil.CONN_LISTEN and connection.laddr.port in ports:
                        urls[pid] = f"http://127.0.0.1:{connection.laddr.port}"
        return urls

    def samples(self, sample: str) -> dict[int, float]:
        """Return a sample of each replica by the id of its process."""
        return {pid: sample_at(url, sample) for pid, url in self.metrics_urls().items()}

    def is_ready(self) -> bool:
        """Tell whether the proxy has a replica that is ready."""
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/readyz", timeout=60, trust_env=False).status_code == 200
        return False


@pytest.fixture(scope="module")
def cluster(environment: dict[str, str]) -> Iterator[Cluster]:
    """Yield a Ray of its own, which serves nothing yet."""
    dashboard = free_port()
    # A short path, for sockets are among its files.
    with tempfile.TemporaryDirectory(prefix="mw-", ignore_cleanup_errors=True) as scratch:
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
            *(f"--num-cpus={CPUS}", "--object-store-memory=100000000", f"--temp-dir={scratch}/ray"),
            *("--node-ip-address=127.0.0.1", f"--port={free_port()}", f"--dashboard-port={dashboard}"),
            *(f"--ray-client-server-port={free_port()}", "--dashboard-agent-listen-port=0"),
            *("--min-worker-port=0", "--max-worker-port=0"),
        ]
        ready = f"http://127.0.0.1:{dashboard}{APPLICATIONS}"
        with running_process(command, ready, "Ray did not start", END_SECONDS, env=environment):
            yield Cluster(free_port(), dashboard)


@pytest.fixture
def three(cluster: Cluster) -> Cluster:
    """Return the cluster with three replicas."""
    cluster.deploy(cluster.config(), "RUNNING")
    cluster.wait(cluster.is_ready)
    return cluster


@pytest.fixture(scope="session")
def plain() -> Iterator[httpx.Client]:
    """Return a client of the server without Ray, with the same model."""
    server = Server(None, {}, {"decode_threads": 1, "lanes": 1, "threads_per_image": 1, "dtype": "auto"})
    try:
        with httpx.Client(base_url=server.wait_ready(), trust_env=False) as client:
            yield client
    finally:
        server.close()
