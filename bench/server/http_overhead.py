"""Server CPU a request without decode and forward: raw JPEG bodies over kept connections."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..bodies import make_jpeg
from ..load.plan import Plan, Shot, target_of
from ..load.processes import run_plan
from ..load.samples import OK, merged, percentile
from ..machine import about
from ..process import running_server, stage_cpu_seconds

DEFAULT_OUT = Path("bench/results/http_overhead.json")
FOREVER_SECONDS, TIMEOUT_SECONDS = 24 * 3600.0, 60.0


def run(bundle: Path, *, requests: int = 2000, concurrency: int = 32, body_bytes: int = 110_000) -> dict[str, Any]:
    """Measure one server process.

    Returns:
        CPU ms per request by part, RSS along the way, latencies, errors.
    """
    body = make_jpeg(body_bytes)
    load_before = os.getloadavg()
    with running_server(bundle) as (server, url):
        plan = Plan((target_of(url),), "/classify", (Shot(body, "image/jpeg"),), FOREVER_SECONDS)
        plan = replace(plan, connections=concurrency, requests=requests // 2, timeout_seconds=TIMEOUT_SECONDS)
        run_plan(replace(plan, requests=4 * concurrency))
        stages, rss, cpu = stage_cpu_seconds(url), [server.memory_info().rss], server.cpu_times()
        parts = []
        for _ in range(2):
            parts.append(run_plan(plan))
            rss.append(server.memory_info().rss)
        cpu_after, stages_after = server.cpu_times(), stage_cpu_seconds(url)
    samples, seconds = merged(parts), sum(part.ended_after() for part in parts)
    statuses, latencies = samples.counts(), samples.accepted()
    total_ms = (cpu_after.user + cpu_after.system - cpu.user - cpu.system) / len(samples) * 1e3
    part_ms = {stage: (stages_after[stage] - stages[stage]) / len(samples) * 1e3 for stage in stages}
    return {
        **about("http_overhead", load_before),
        "requests": len(samples),
        "concurrency": concurrency,
        "body_bytes": len(body),
        "errors": len(samples) - statuses[OK],
        "statuses": dict(statuses),
        "requests_per_second": round(len(samples) / seconds, 1),
        "cpu_ms_per_request": round(total_ms, 3),
        "decode_cpu_ms_per_request": round(part_ms["decode"], 3),
        "forward_cpu_ms_per_request": round(part_ms["forward"], 3),
        "overhead_cpu_ms_per_request": round(total_ms - part_ms["decode"] - part_ms["forward"], 3),
        "latency_ms": {f"p{q}": round(percentile(latencies, q) * 1e3, 2) for q in (50, 99)} if latencies else None,
        "rss_mb": {name: round(value / 1e6, 1) for name, value in zip(("start", "middle", "end"), rss, strict=True)},
    }
