"""The peers' command.

python -m milkweed.bench.peers setup litserve triton --venvs /tmp/peers
python -m milkweed.bench.peers run --peers milkweed litserve triton --seconds 10
"""

import argparse
import json
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from ..server.request import Request
from ..server.tables import line
from .catalogue import PEERS, VENVS
from .install import TORCH, install
from .run import DEFAULT_OUT, OURS, Comparison
from .tables import skipped, table

VENV_FOLDER = Path("/tmp/peers")
WIDTH = 120


def main(arguments: list[str] | None = None) -> int:
    """Command line; see the module's docstring. 1 where something could not be installed."""
    options = _parser().parse_args(arguments)
    if options.command == "setup":
        return _setup(options)
    request = Request(
        seconds=options.seconds,
        concurrency=options.concurrency,
        clients=options.clients,
        rates=(options.rate,),
        settings=dict(pair.split("=", 1) for pair in options.set),
    )
    note = partial(print, file=sys.stderr, flush=True)
    document = Comparison(request, options.venvs, options.device_ms, _say, note).run(options.peers)
    document["command"] = shlex.join(["python", "-m", "milkweed.bench.peers", *(arguments or sys.argv[1:])])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    Console(width=WIDTH, markup=False, emoji=False, highlight=False).print(table(document))
    for why in skipped(document):
        print(why)
    return 0


def _setup(options: argparse.Namespace) -> int:
    failed = 0
    for name in options.names or [name for name in PEERS if name not in VENVS]:
        print(f"{name}: ", end="", flush=True)
        try:
            install(name, options.venvs, options.torch)
            print("there")
        except RuntimeError as error:
            failed = 1
            print(f"not installed: {error}")
    return failed


def _say(row: dict[str, Any]) -> None:
    print(f"  {row['server']}: {line(row)}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m milkweed.bench.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    setup = commands.add_parser("setup", help="make the environments of peers")
    setup.add_argument("names", nargs="*", metavar="NAME", choices=[*PEERS, []], help=f"some of {', '.join(PEERS)}")
    setup.add_argument("--torch", default=TORCH, help="requirement that pip gets for torch")
    measure = commands.add_parser("run", help="measure milkweed and peers")
    measure.add_argument("--peers", nargs="+", choices=[OURS, *PEERS], default=[OURS, *PEERS], metavar="NAME")
    measure.add_argument("--seconds", type=float, default=10.0, help="of a row")
    measure.add_argument("--concurrency", type=int, default=32, help="connections of the first capacity row")
    measure.add_argument("--clients", type=int, default=1, help="client processes")
    measure.add_argument("--rate", type=float, default=250.0, help="of the open-loop row, requests a second")
    measure.add_argument("--device-ms", type=float, default=50.0, help="that a batch takes besides, under overload")
    measure.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="setting of our server")
    measure.add_argument("--out", type=Path, default=DEFAULT_OUT)
    for command in (setup, measure):
        command.add_argument("--venvs", type=Path, default=VENV_FOLDER, help="folder of the environments")
    return parser


if __name__ == "__main__":
    sys.exit(main())
