"""A Ray cluster of its own: started and ended by Ray's command, told what to serve as `serve deploy` tells it."""

import contextlib
import io
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from PIL import Image
from starlette.testclient import TestClient

from milkweed.cli.bundle_args import named_bundles
from milkweed.server.config.settings import Settings
from milkweed.server.process.service_app import create_app

from ...support.ports import free_port, wait_until_ready

ROOT = Path(__file__).resolve().parents[3]
RAY = ROOT / "deploy" / "ray"

START_SECONDS, END_SECONDS = 300.0, 60.0
CPUS = 3  # of three replicas: none to spare
METRICS_PORTS = 16
QUEUE_IMAGES = 24

Config = dict[str, Any]


@pytest.fixture(scope="session")
def ray_here() -> None:
    """Tests that need Ray skip without it."""
    try:
        version("ray")
    except PackageNotFoundError:
        pytest.skip("Ray is not installed: pip install 'ray[serve]==2.60.0'")


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The variables of processes, which can import the adapter and know no settings and no other cluster."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MILKWEED_", "RAY_"))}
    path = os.pathsep.join([str(RAY), *filter(None, [os.environ.get("PYTHONPATH")])])
    ray = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",  # it listens on this machine alone
        "RAY_memory_monitor_refresh_ms": "0",  # a machine that others fill as well is no reason to kill replicas
    }
    return {**kept, **ray, "PYTHONPATH": path}


class Cluster:
    """One Ray with our config, on ports of its own.

    Args:
        scratch: its files; a short path, for sockets are among them.
    """

    def __init__(self, scratch: str, environment: dict[str, str]) -> None:
        self.port, self.metrics_port, dashboard = free_port(), free_port(METRICS_PORTS - 1), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._applications = f"http://127.0.0.1:{dashboard}/api/serve/applications/"
        self._log = Path(scratch, "ray.log")
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
                    *(f"--num-cpus={CPUS}", "--object-store-memory=100000000", f"--temp-dir={scratch}/ray"),
                    *("--node-ip-address=127.0.0.1", f"--port={free_port()}", f"--dashboard-port={dashboard}"),
                    *(f"--ray-client-server-port={free_port()}", "--dashboard-agent-listen-port=0"),
                    *("--min-worker-port=0", "--max-worker-port=0"),
                ],
                stdout=log,
                stderr=log,
                env=environment,
            )

    def wait_until_started(self) -> None:
        """Wait until it can be told what to serve."""
        try:
            wait_until_ready(self._applications, START_SECONDS, lambda: self._process.poll() is None)
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{self._log.read_text()[-3000:]}") from None

    def config(self, replicas: int = 3, **settings: str) -> Config:
        """deploy/ray/serve.yaml, for one small machine."""
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
        """`serve deploy`."""
        httpx.put(self._applications, json=config, timeout=60, trust_env=False).raise_for_status()

    def status(self) -> dict[str, Any]:
        """`serve status`: of our application."""
        found = httpx.get(self._applications, timeout=60, trust_env=False).raise_for_status().json()
        application: dict[str, Any] = found["applications"].get("milkweed", {"status": "NONE", "deployments": {}})
        return application

    def replicas(self) -> dict[int, str]:
        """State of each by the id of its process."""
        deployment = self.status()["deployments"].get("Milkweed", {"replicas": []})
        return {replica["pid"]: replica["state"] for replica in deployment["replicas"] if "pid" in replica}

    def deploy(self, config: Config, *wanted: str) -> dict[str, Any]:
        """Have it served; what became of it."""
        self.put(config)
        self.wait(lambda: self.status()["status"] in (wanted or ("RUNNING",)))
        return self.status()

    def wait(self, condition: Callable[[], bool], every_seconds: float = 1.0) -> None:
        """Wait until something is so."""
        end = time.monotonic() + START_SECONDS
        while not condition():
            assert time.monotonic() < end, f"{self.status()}\n{self._log.read_text()[-3000:]}"
            time.sleep(every_seconds)

    def metrics_ports(self) -> dict[int, int]:
        """The metrics port of each replica by its process's id."""
        found = {}
        for pid in self.replicas():
            with contextlib.suppress(psutil.Error):
                for connection in psutil.Process(pid).net_connections("tcp"):
                    port = connection.laddr.port if connection.status == psutil.CONN_LISTEN else 0
                    if self.metrics_port <= port < self.metrics_port + METRICS_PORTS:
                        found[pid] = port
        return found

    def metric(self, port: int, sample: str) -> float:
        """A sample of the replica with this metrics port; 0 where it has none."""
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=20, trust_env=False).text
        found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def shutdown(self) -> None:
        """`serve shutdown`."""
        httpx.delete(self._applications, timeout=END_SECONDS, trust_env=False).raise_for_status()

    def close(self) -> None:
        """End it, and what is left of it."""
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):  # it may have ended by itself
            family = [ray := psutil.Process(self._process.pid), *ray.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._process.wait()
        psutil.wait_procs(family, timeout=10)


@pytest.fixture(scope="module")
def cluster(ray_here: None, environment: dict[str, str]) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="mw-", ignore_cleanup_errors=True) as scratch:
        running = Cluster(scratch, environment)
        try:
            running.wait_until_started()
            yield running
        finally:
            running.close()


@pytest.fixture
def three(cluster: Cluster) -> Cluster:
    """The cluster with three replicas."""
    cluster.deploy(cluster.config())
    wait_until_ready(cluster.url + "/readyz", START_SECONDS)
    return cluster


@pytest.fixture(scope="session")
def bodies() -> dict[str, bytes]:
    """Pictures by name, JPEG and PNG: five small ones, and one that takes long to decode."""
    made = {}
    for number, size in enumerate([(70, 64), (79, 64), (88, 64), (97, 64), (106, 64), (3000, 3000)]):
        noise = random.Random(number).randbytes(8 * 8 * 3)
        picture = Image.frombytes("RGB", (8, 8), noise).resize(size, Image.Resampling.NEAREST)
        out = io.BytesIO()
        picture.save(out, "PNG" if number % 2 else "JPEG")
        made[f"picture{number}"] = out.getvalue()
    return made


@pytest.fixture(scope="session")
def plain() -> Iterator[TestClient]:
    """The server without Ray, with the same model."""
    app = create_app(Settings(decode_threads=1, lanes=1, threads_per_lane=1), named_bundles([]))
    with TestClient(app) as client:
        app.state.service.prepared.result(START_SECONDS)
        end = time.monotonic() + 10
        while client.get("/readyz").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.01)
        yield client
