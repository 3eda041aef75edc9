"""The image's health check, against real servers: plain, with TLS, with client certificates, draining and gone."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from milkweed.bench.ports import free_port
from milkweed.server.config.settings import Settings
from milkweed.server.process.healthcheck import DEFAULTS

from ...support.authority import Authority, needs_openssl
from ...support.waiting import HANG_SECONDS


def check(**settings: object) -> tuple[int, str]:
    """Run the health check; its exit code and output. It must not ask a proxy, which containers are often given."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MILKWEED_")}
    environment |= {f"MILKWEED_{name.upper()}": str(value) for name, value in settings.items()}
    environment["http_proxy"] = "http://127.0.0.1:9"
    command = [sys.executable, "-m", "milkweed.server.process.healthcheck"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS)
    return result.returncode, result.stdout + result.stderr


def test_its_defaults_are_the_servers() -> None:
    settings = Settings()
    assert {name: str(getattr(settings, name.lower())) for name in DEFAULTS} == DEFAULTS


def test_ready_draining_and_gone(serving: Any) -> None:
    ports = {"port": free_port(), "metrics_port": 0}
    with serving(**ports, drain_grace_seconds=20) as server:
        server.wait_ready()
        assert check(**ports) == (0, '200 {"status":"ok"}\n')
        server.terminate()
        server.wait_log("stopping")
        code, said = check(**ports)
        assert (code, said[:4]) == (1, "503 ")
        server.terminate(signal.SIGKILL)
        server.exit()
    code, said = check(**ports)
    assert code == 1
    assert "ConnectionRefusedError" in said


@needs_openssl
@pytest.mark.parametrize("clients_too", [True, False])
def test_with_tls(serving: Any, tmp_path: Path, clients_too: bool) -> None:
    authority = Authority(tmp_path, "authority")
    cert, key = authority.issue("server")
    ports = {"port": free_port(), "metrics_port": free_port() if clients_too else 0}
    tls = {"tls_cert": cert, "tls_key": key, **({"tls_client_ca": authority.cert} if clients_too else {})}
    with serving(**ports, **tls) as server:
        server.wait_ready()
        assert check(**ports, **tls)[0] == 0
        assert check(**ports)[0] == 1, "in plain HTTP nobody answers there"
