"""What one who asks waits for a single image, and how many are answered with more HTTP workers: real servers."""

import tempfile
from pathlib import Path

from ..clients import load
from ..http_overhead import running_server
from .forward import ALL, MLPS
from .images_served import ARCH, LOADERS, made_bundle, served_settings, written
from .images_subject import ImageReport, Subject
from .report import at_most

LATENCY_GOAL_MS = 3.0


def measure_latency(subject: Subject, report: ImageReport) -> None:
    """One image after the other on one connection, all block linears of the model Monarch, for each loader."""
    arch = subject.scale.latency_model
    with tempfile.TemporaryDirectory() as scratch:
        bundle = made_bundle(Path(scratch) / "bundle", arch, ALL)
        folder = written(Path(scratch) / "photos", subject.photos)
        for loader in LOADERS:
            settings = {**served_settings(subject, loader), "tuning": "auto"}
            with running_server(bundle, settings) as (_, url):
                seen = load(url, folder, clients=1, connections=1, seconds=subject.scale.serve_seconds)
            row = {"arch": arch, "loader": loader, "p50_ms": seen.p50_ms, "p99_ms": seen.p99_ms}
            report.latency.append({**row, "statuses": seen.statuses})
            print(f"  latency, {arch}, loader {loader}: p50 {seen.p50_ms} ms, p99 {seen.p99_ms} ms", flush=True)
            subject.keep()
    fastest = min(float(row["p50_ms"]) for row in report.latency)
    report.goals.append(
        at_most(f"latency of one image, {arch}, Monarch {'+'.join(ALL)}", LATENCY_GOAL_MS, fastest, " ms")
    )


def measure_workers(subject: Subject, report: ImageReport) -> None:
    """Images a second of servers with more and more HTTP workers, on each size of photographs."""
    scale = subject.scale
    with tempfile.TemporaryDirectory() as scratch:
        bundle = subject.bundle or made_bundle(Path(scratch) / "bundle", ARCH, MLPS)
        folders = {what: written(Path(scratch) / what, bodies) for what, bodies in subject.sets.items()}
        for workers in scale.workers:
            if subject.seconds_left() < 0:
                subject.say(f"skipped: {workers} HTTP workers: out of time")
                continue
            settings = {**served_settings(subject, "auto"), "http_workers": workers}
            with running_server(bundle, settings) as (_, url):
                for what, folder in folders.items():
                    seen = load(
                        url, folder, clients=scale.clients, connections=scale.connections, seconds=scale.serve_seconds
                    )
                    row = {"http_workers": workers, "photos": what, "images_per_second": seen.images_per_second}
                    latencies = {"p50_ms": seen.p50_ms, "p99_ms": seen.p99_ms}
                    report.workers.append({**row, **latencies, "statuses": seen.statuses})
                    print(f"  {workers:2} HTTP workers, {what}: {seen.images_per_second:.0f} images/s", flush=True)
            subject.keep()
