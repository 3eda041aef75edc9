"""What one who asks waits for a single image, and how many images one process takes in: real servers."""

import tempfile
from pathlib import Path

from ...load.folder import load
from ...process import running_server
from ..forward import ALL, MLPS
from ..report import at_most
from .served import ARCH, LOADERS, made_bundle, served_settings, written
from .subject import ImageReport, Subject

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


def measure_ingest(subject: Subject, report: ImageReport) -> None:
    """Images a second that one server takes in, decodes and answers, on each size of photographs."""
    scale = subject.scale
    with tempfile.TemporaryDirectory() as scratch:
        bundle = subject.bundle or made_bundle(Path(scratch) / "bundle", ARCH, MLPS)
        folders = {what: written(Path(scratch) / what, bodies) for what, bodies in subject.sets.items()}
        with running_server(bundle, served_settings(subject, "auto")) as (_, url):
            for what, folder in folders.items():
                if subject.seconds_left() < 0:
                    subject.say(f"skipped: {what}: out of time")
                    continue
                seen = load(
                    url, folder, clients=scale.clients, connections=scale.connections, seconds=scale.serve_seconds
                )
                row = {"photos": what, "images_per_second": seen.images_per_second}
                report.ingest.append({**row, "p50_ms": seen.p50_ms, "p99_ms": seen.p99_ms, "statuses": seen.statuses})
                print(f"  one process, {what}: {seen.images_per_second:.0f} images/s", flush=True)
        subject.keep()
