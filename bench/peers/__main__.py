"""Measures the same tiny ViT behind milkweed and behind other servers, one after the other.

python -m milkweed.bench.peers setup litserve triton --venvs /tmp/peers
python -m milkweed.bench.peers run --peers milkweed litserve triton --seconds 10
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ...cli.output import print_table
from ...models import load_bundle
from ..bodies import arrays, pictures
from ..load.connection import learned
from ..load.requests import shots
from ..machine import about, save
from ..process import running_server, slow_device
from ..server import sections
from ..server.benched_server import BenchedServer
from ..server.bundles import TINY_SIZE, tiny_bundle
from ..server.request import Request
from ..server.tables import line
from .catalogue import PEERS, running_peer

OURS = "milkweed"
RATE = 250.0  # requests a second of the open loop, alike for all
DEVICE_MS = 50.0
"""In the overload rows a batch takes so much more without the CPU, so that the device is what there is too little of,
not the cores that the client needs too."""

COLUMNS = ("server", " CPU ms/req", " req/s", " open p50", " open p99", " neighbours", " goodput at 2x", " PSS MB")


def export(folder: Path) -> tuple[Path, Path]:
    """Write the bundle for our server and the state dict of the same weights for the peers; return their places."""
    bundle, weights = tiny_bundle(folder / "tiny"), folder / "tiny.pt"
    state = load_bundle(bundle)[0].state_dict()
    torch.save({name: value.contiguous() for name, value in state.items()}, weights)
    return bundle, weights


def measure(name: str, request: Request, venvs: Path, bundle: Path, weights: Path) -> dict[str, Any]:
    """Run all rows of one server. One that cannot be measured has a line that says why."""
    server: dict[str, Any] = {"name": name, "version": version(OURS), "body": "npy", "batching": "as it comes"}
    server["skipped"], server["rows"] = None, (rows := list[dict[str, Any]]())
    if name != OURS:
        peer = PEERS[name]
        server |= {"version": peer.version(venvs), "body": peer.body, "batching": peer.settings}
    try:
        if server["version"] is None:
            raise RuntimeError(f"not installed: python -m milkweed.bench.peers setup {name}")
        with _started(name, request, venvs, bundle, weights, 0.0, rows) as benched:
            most = sections.capacity(benched)
            sections.load(benched, most)
            sections.malformed(benched, most)
        with _started(name, request, venvs, bundle, weights, DEVICE_MS, rows) as benched:
            most = sections.capacity(benched, "slow device,", section="slow")
            sections.overload(benched, most, tells=name == OURS)
    except RuntimeError as error:
        server["skipped"] = str(error)
    return server


@contextmanager
def _started(
    name: str, request: Request, venvs: Path, bundle: Path, weights: Path, device_ms: float, rows: list[dict[str, Any]]
) -> Iterator[BenchedServer]:
    """Yield the server, running and warm."""
    images = pictures(TINY_SIZE)
    with ExitStack() as stack:
        if name == OURS:
            prelude = slow_device(device_ms / 1e3) if device_ms else ""
            process, url = stack.enter_context(running_server(bundle, {}, prelude))
            pid, plan = process.pid, request.plan(url, shots("npy", arrays(images)))
        else:
            peer = PEERS[name]
            pid, url = stack.enter_context(running_peer(peer, venvs, weights, device_ms))
            plan = request.plan(url, peer.shots(images), peer.path, peer.answer)
        benched = BenchedServer(name, learned(plan), request, pid, _say, rows)
        benched.warm_up()
        yield benched


def _say(row: Mapping[str, Any]) -> None:
    print(f"  {row['server']}: {line(row)}", file=sys.stderr, flush=True)


def cells(server: Mapping[str, Any]) -> list[str]:
    """The COLUMNS of one server that was measured.

    They are CPU a request and rate of the closed loop; latencies, ms, of the open loop that all get alike; good
    requests failed beside malformed ones; answers in time at twice the capacity of the slow device, as a share of it.
    """
    by_section = defaultdict(list)
    for row in server["rows"]:
        by_section[row["section"]].append(row)
    capacity = min(by_section["capacity"], key=lambda row: (row["good_failed"] > 0, -row["goodput"]))
    latency = by_section["load"][-1]["latency_ms"] or {"p50": "-", "p99": "-"}
    mixed, most = by_section["malformed"][-1], max(row["goodput"] for row in by_section["slow"])
    shares = "/".join(f"{100 * row['goodput'] / most:.0f}" for row in by_section["overload"])
    return [
        *(server["name"], f"{capacity['cpu_ms_per_request']:.2f}", f"{capacity['goodput']:.0f}"),
        *(f"{latency['p50']}", f"{latency['p99']}", f"{mixed['good_failed'] / max(1, mixed['good_sent']):.1%}"),
        *(f"{shares}% of {most:.0f}", f"{capacity['pss_mb']:.0f}"),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line of the module's docstring; return 1 where something could not be installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    setup = commands.add_parser("setup", help="make the environments of peers")
    setup.add_argument("names", nargs="*", metavar="NAME", choices=[*PEERS, []], help=f"some of {', '.join(PEERS)}")
    run = commands.add_parser("run", help="measure milkweed and peers")
    run.add_argument("--peers", nargs="+", choices=[OURS, *PEERS], default=[OURS, *PEERS], metavar="NAME")
    run.add_argument("--seconds", type=float, default=10.0, help="of a row")
    run.add_argument("--out", type=Path, default=Path("bench/results/peers.json"))
    for command in (setup, run):
        command.add_argument("--venvs", type=Path, default=Path("/tmp/peers"), help="folder of the environments")
    options = parser.parse_args(arguments)
    return _setup(options) if options.command == "setup" else _run(options)


def _setup(options: argparse.Namespace) -> int:
    failed = 0
    for name in options.names or PEERS:
        try:
            PEERS[name].install(options.venvs)
            print(f"{name}: there")
        except (OSError, subprocess.CalledProcessError) as error:
            failed = 1
            print(f"{name}: not installed: {error} {(getattr(error, 'stderr', None) or '')[-500:]}")
    return failed


def _run(options: argparse.Namespace) -> int:
    request, load = Request(seconds=options.seconds, rates=(RATE,)), os.getloadavg()
    options.out.parent.mkdir(parents=True, exist_ok=True)  # before what takes minutes
    with tempfile.TemporaryDirectory() as folder:
        places = export(Path(folder))
        servers = [measure(name, request, options.venvs, *places) for name in options.peers]
    document = {
        **about("peers", load),
        "settings": {**request.document(), "device_ms": DEVICE_MS},
        "servers": servers,
    }
    save(options.out, document)
    for server in servers:
        if server["skipped"] is not None:
            print(f"{server['name']}: skipped: {server['skipped']}")
    print_table(COLUMNS, (cells(server) for server in servers if server["skipped"] is None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
