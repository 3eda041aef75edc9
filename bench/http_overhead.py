"""Server CPU a request without decode and forward: raw JPEG bodies, kept connections, a client of its own."""

import argparse
import asyncio
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

RESULTS = Path(__file__).parent / "results" / "http_overhead.json"
START_SECONDS = 120.0

_SERVE = """
import json, os, signal, sys, threading
from pathlib import Path
def end_with_the_parent():  # which may be killed: then nobody holds the other end
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=end_with_the_parent, daemon=True).start()
from milkweed.server.settings_source import load_settings
settings = load_settings({"port": 0, "metrics_port": 0, **json.loads(sys.argv[2])})
from milkweed.server.serve import run_server
sys.exit(run_server(settings, {"bench": Path(sys.argv[1])} if sys.argv[1] else {}))
"""


def make_jpeg(size_bytes: int, width: int = 500, height: int = 375) -> bytes:
    """A photograph-like JPEG (smooth shapes, some grain) of ImageNet's usual size, near `size_bytes`."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [128 + 90 * np.sin(x / a + c) * np.cos(y / b) for a, b, c in ((37, 53, 0), (61, 29, 1), (23, 71, 2))]
    grain = np.random.default_rng(0).normal(0, 12, (height, width, 3))
    image = Image.fromarray(np.clip(np.stack(waves, -1) + grain, 0, 255).astype(np.uint8))
    bodies = []
    for quality in range(30, 100):
        out = io.BytesIO()
        image.save(out, "JPEG", quality=quality)
        bodies.append(out.getvalue())
    return min(bodies, key=lambda body: abs(len(body) - size_bytes))


@contextmanager
def running_server(
    bundle: Path | None, settings: Mapping[str, Any] | None = None, prelude: str = ""
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process on a free port, warm; its URL.

    Args:
        bundle: None: those of a repository that the settings name.
        settings: by field name, those that are not to be as usual.
        prelude: Python that it runs before milkweed.

    Raises:
        RuntimeError: it did not start in START_SECONDS; with the last that it said.
    """
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", prelude + _SERVE, str(bundle or ""), json.dumps(dict(settings or {}))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(START_SECONDS, process.kill)
        late.start()
        try:
            # printed once warm; end of file when the start failed
            match = next(filter(None, (re.search(r"http://\S+", line) for line in process.stdout)), None)
            late.cancel()
            if match is None:
                said.seek(0)
                raise RuntimeError(f"the server did not start with bundle {bundle}: {said.read()[-400:]}")
            yield process, match[0]
        finally:
            late.cancel()
            process.terminate()
            process.wait(START_SECONDS)
            process.stdout.close()
            process.stdin.close()


async def _post_all(host: str, port: int, body: bytes, count: int, concurrency: int) -> dict[str, Any]:
    """Post `count` times over `concurrency` kept connections; latencies in ms, statuses."""
    head = f"POST /classify HTTP/1.1\r\nHost: {host}\r\nContent-Type: image/jpeg\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    left = iter(range(count))
    latencies_ms: list[float] = []
    statuses: Counter[str] = Counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        for _ in left:
            started = time.perf_counter()
            try:
                writer.write(request)
                headers = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", headers, re.IGNORECASE)
                await reader.readexactly(int(length[1]) if length else 0)
                statuses[headers[9:12].decode()] += 1
                latencies_ms.append((time.perf_counter() - started) * 1e3)
            except (OSError, asyncio.IncompleteReadError) as error:
                statuses[type(error).__name__] += 1
                writer.close()
                reader, writer = await asyncio.open_connection(host, port)
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    return {"latencies_ms": latencies_ms, "statuses": statuses, "seconds": time.perf_counter() - started}


def post_all(url: str, body: bytes, count: int, concurrency: int) -> dict[str, Any]:
    """`_post_all` in a process of its own, so that client and server CPU do not mix."""
    host, port = url.removeprefix("http://").rsplit(":", 1)
    return asyncio.run(_post_all(host, int(port), body, count, concurrency))


def stage_cpu_seconds(url: str) -> dict[str, float]:
    """CPU seconds by stage since the server's start, from its metrics."""
    with urllib.request.urlopen(url + "/metrics") as answer:
        text = answer.read().decode()
    found = re.findall(r'^milkweed_stage_cpu_seconds_total\{stage="(\w+)"\} (\S+)', text, re.MULTILINE)
    return {stage: float(value) for stage, value in found}


def run(bundle: Path, *, requests: int = 2000, concurrency: int = 32, body_bytes: int = 110_000) -> dict[str, Any]:
    """Measure one server process.

    Returns:
        CPU ms per request by part, RSS along the way, latencies, errors.
    """
    from .process import machine  # here, so that the client process does not load torch

    body = make_jpeg(body_bytes)
    load_average = os.getloadavg()[0]
    client = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    with client, running_server(bundle) as (process, url):
        server = psutil.Process(process.pid)
        client.submit(post_all, url, body, 4 * concurrency, concurrency).result()
        stages = stage_cpu_seconds(url)
        rss = [server.memory_info().rss]
        cpu = server.cpu_times()
        halves = []
        for _ in range(2):
            halves.append(client.submit(post_all, url, body, requests // 2, concurrency).result())
            rss.append(server.memory_info().rss)
        cpu_after = server.cpu_times()
        stages_after = stage_cpu_seconds(url)
    statuses: Counter[str] = sum((half["statuses"] for half in halves), Counter())
    done = sum(statuses.values())
    total_ms = (cpu_after.user + cpu_after.system - cpu.user - cpu.system) / done * 1e3
    part_ms = {stage: (stages_after[stage] - stages[stage]) / done * 1e3 for stage in stages}
    latencies = np.array([ms for half in halves for ms in half["latencies_ms"]])
    return {
        "machine": machine(),
        "load_average_before": round(load_average, 2),
        "requests": done,
        "concurrency": concurrency,
        "body_bytes": len(body),
        "errors": done - statuses["200"],
        "statuses": dict(statuses),
        "requests_per_second": round(done / sum(half["seconds"] for half in halves), 1),
        "cpu_ms_per_request": round(total_ms, 3),
        "decode_cpu_ms_per_request": round(part_ms["decode"], 3),
        "forward_cpu_ms_per_request": round(part_ms["forward"], 3),
        "overhead_cpu_ms_per_request": round(total_ms - part_ms["decode"] - part_ms["forward"], 3),
        "latency_ms": {f"p{q}": round(float(np.percentile(latencies, q)), 2) for q in (50, 99)},
        "rss_mb": {name: round(value / 1e6, 1) for name, value in zip(("start", "middle", "end"), rss, strict=True)},
    }


def main(arguments: list[str] | None = None) -> int:
    """Command line: print the rows, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--body-bytes", type=int, default=110_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    result = run(
        options.bundle,
        requests=options.requests,
        concurrency=options.concurrency,
        body_bytes=options.body_bytes,
    )
    for name, value in result.items():
        print(f"{name:30} {value}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if result["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
