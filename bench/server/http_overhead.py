"""Server CPU a request without decode and forward: raw JPEG bodies over kept connections."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..bodies import make_jpeg
from ..load.plan import Plan, Shot, target_of
from ..load.processes import run_plan
from ..machine import about
from ..process import running_server, stage_cpu_seconds
from .benched_server import BenchedServer
from .request import Request
from .sections import FOREVER_SECONDS

DEFAULT_OUT = Path("bench/results/http_overhead.json")
TIMEOUT_SECONDS = 60.0


def run(bundle: Path, *, requests: int = 2000, concurrency: int = 32, body_bytes: int = 110_000) -> dict[str, Any]:
    """Measure one server process.

    Returns:
        CPU ms per request by part, RSS before and after, latencies, errors.
    """
    load_before, shots = os.getloadavg(), (Shot(make_jpeg(body_bytes), "image/jpeg"),)
    with running_server(bundle) as (server, url):
        plan = Plan((target_of(url),), "/classify", shots, FOREVER_SECONDS, timeout_seconds=TIMEOUT_SECONDS)
        plan = replace(plan, connections=concurrency, requests=requests)
        run_plan(replace(plan, requests=4 * concurrency))  # a warm-up
        benched = BenchedServer("raw", plan, Request(), server.pid, stages=partial(stage_cpu_seconds, url))
        row = benched.row("http", f"{concurrency} connections", plan)
    total_ms, part_ms, latency = row["cpu_ms_per_request"], row["stage_cpu_ms_per_request"], row["latency_ms"]
    return {
        **about("http_overhead", load_before),
        "requests": row["sent"],
        "concurrency": concurrency,
        "body_bytes": len(shots[0].body),
        "errors": row["good_failed"],
        "statuses": row["statuses"],
        "requests_per_second": round(row["sent"] / row["seconds"], 1),
        "cpu_ms_per_request": total_ms,
        "decode_cpu_ms_per_request": part_ms["decode"],
        "forward_cpu_ms_per_request": part_ms["forward"],
        "overhead_cpu_ms_per_request": round(total_ms - part_ms["decode"] - part_ms["forward"], 3),
        "latency_ms": latency and {name: latency[name] for name in ("p50", "p99")},
        "rss_mb": dict(zip(("start", "end"), row["rss_mb"], strict=True)),
    }
