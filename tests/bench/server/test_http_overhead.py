"""The overhead benchmark, small: its figures are there and hang together."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from milkweed.bench.bodies import make_jpeg
from milkweed.bench.server.bundles import tiny_bundle
from milkweed.bench.server.http_overhead import run

from ...support.waiting import HANG_SECONDS


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("bundles") / "tiny")


@pytest.mark.slow
def test_figures_hang_together(bundle: Path) -> None:
    result = run(bundle, requests=60, concurrency=4, body_bytes=20_000)
    assert (result["requests"], result["errors"], result["statuses"]) == (60, 0, {"200": 60})
    parts = ("decode_cpu_ms_per_request", "forward_cpu_ms_per_request", "overhead_cpu_ms_per_request")
    assert sum(result[part] for part in parts) == pytest.approx(result["cpu_ms_per_request"], abs=0.01)
    assert result["decode_cpu_ms_per_request"] > 0
    assert result["forward_cpu_ms_per_request"] > 0
    assert 0 < result["latency_ms"]["p50"] <= result["latency_ms"]["p99"]
    assert result["machine"]["cores"] >= 1


@pytest.mark.slow
def test_a_server_ends_with_a_bench_that_is_killed(bundle: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from milkweed.bench.process import running_server\n"
        "with running_server(Path(sys.argv[1])) as (server, _): print(server.pid, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(bundle)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None
        server = psutil.Process(int(bench.stdout.readline()))
        bench.kill()
    server.wait(HANG_SECONDS)  # TimeoutExpired where it goes on


@pytest.mark.parametrize("size_bytes", [30_000, 110_000])
def test_body_has_the_size_asked_for(size_bytes: int) -> None:
    assert len(make_jpeg(size_bytes)) == pytest.approx(size_bytes, rel=0.1)
