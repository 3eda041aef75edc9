"""Options of `milkweed bench`: those of all its commands, and all that a row of load can be told."""

from pathlib import Path
from typing import Annotated

import typer

from ...server.cli.failure import WRONG_USAGE, Failure
from ...server.cli.options import number_option, split_list

HEADINGS = {
    "--url": "What is put under load",
    "--sections": "What is measured",
    "--arrivals": "Open loop and overload",
    "--restarts": "Restarts, reloads, soak",
}
"""By the option of `bench server` that begins a part of its help."""

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="File of the JSON; not given: beside --plot, else in bench/results/."),
]
BatchSizes = Annotated[
    str, typer.Option("--batch-sizes", metavar="LIST", help="Images of a batch, with commas between.")
]
Threads = Annotated[int, number_option("--threads", "Threads of torch that compute one batch.")]

Server = Annotated[
    Path | None,
    typer.Argument(metavar="BUNDLE", help="Folder of the bundle; a tiny ViT of random weights if not given."),
]
Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Measure a server that runs already: no CPU, memory or restarts then."),
]
Arch = Annotated[
    str | None, typer.Option("--arch", metavar="NAME", help="Serve this architecture with random weights.")
]
Sections = Annotated[
    str | None,
    typer.Option(
        "--sections",
        metavar="LIST",
        help="Some of capacity, load, overload, malformed, rolling, reload, soak; not given: all but soak.",
    ),
]
Bodies = Annotated[
    str | None,
    typer.Option(
        "--body",
        metavar="LIST",
        help="Some of raw, multipart, json, npy: the capacity of each; all else with the first.",
    ),
]
Photos = Annotated[
    Path | None, typer.Option("--photos", metavar="DIR", help="Folder of JPEGs to post; made ones if not given.")
]
Images = Annotated[int, number_option("--images", "Images of one request.")]
Seconds = Annotated[float, number_option("--seconds", "Seconds that each row is measured.", least=0.5, kind=float)]
Concurrency = Annotated[
    int, number_option("--concurrency", "Connections that the search for the capacity begins with.")
]
Clients = Annotated[int, number_option("--clients", "Processes that send; more where one cannot keep up.")]
Arriving = Annotated[
    str,
    typer.Option(
        "--arrivals", metavar="poisson|fixed", help="When requests start: as of independent users, or evenly."
    ),
]
Loads = Annotated[
    str, typer.Option("--loads", metavar="LIST", help="Rates of the section load, as shares of the capacity.")
]
Rates = Annotated[
    str | None,
    typer.Option("--rates", metavar="LIST", help="Rates in requests a second instead; one for rolling, reload, soak."),
]
Times = Annotated[
    float,
    number_option("--overload", "Rate of the section overload, as a multiple of the capacity.", least=0.1, kind=float),
]
Timeout = Annotated[int, number_option("--timeout-ms", "Milliseconds until the client gives up; overload has its own.")]
OverloadTimeout = Annotated[
    int, number_option("--overload-timeout-ms", "Milliseconds until the client gives up in overload.")
]
Malformed = Annotated[
    float, number_option("--malformed", "Share of malformed requests among good ones, 0 to 1.", least=0, kind=float)
]
Restarts = Annotated[int, number_option("--restarts", "Restarts in the section rolling.")]
Reloads = Annotated[int, number_option("--reloads", "Reloads in the section reload.")]
Delay = Annotated[
    int,
    number_option("--endpoint-delay-ms", "Milliseconds until the client hears that a server is not ready.", least=0),
]
Minutes = Annotated[float, number_option("--minutes", "Minutes of the section soak.", least=0.01, kind=float)]
ApiKey = Annotated[str | None, typer.Option("--api-key", metavar="KEY", help="Key sent as X-API-Key.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Setting of the server that is started; repeatable."),
]


def chosen(flag: str, text: str | None, known: tuple[str, ...]) -> list[str] | None:
    """The parts of a list, each of which must be known; None where it was not given.

    Raises:
        Failure: one that is not known, or none.
    """
    if text is None:
        return None
    found = split_list(text)
    if not found or set(found) - set(known):
        raise Failure(f"{flag} {text}: expected some of {', '.join(known)}", WRONG_USAGE)
    return found


def numbers(flag: str, text: str | None) -> list[float]:
    """The numbers of a list, all above 0.

    Raises:
        Failure: one that is not.
    """
    try:
        found = [float(part) for part in split_list(text or "")]
    except ValueError:
        found = [0.0]
    if any(not 0 < value < 1e9 for value in found):
        raise Failure(f"{flag} {text}: expected numbers above 0 with commas between", WRONG_USAGE)
    return found


def counts(flag: str, text: str) -> list[int]:
    """The whole numbers of a list, all from 1 on, ascending, each once.

    Raises:
        Failure: one that is not, or none.
    """
    found = numbers(flag, text)
    if not found or any(value != int(value) for value in found):
        raise Failure(f"{flag} {text}: expected whole numbers from 1 on with commas between", WRONG_USAGE)
    return sorted({int(value) for value in found})


def pairs(flag: str, texts: list[str] | None) -> dict[str, str]:
    """NAME=VALUE arguments.

    Raises:
        Failure: one without '='.
    """
    for text in texts or ():
        if "=" not in text:
            raise Failure(f"{flag} {text}: expected NAME=VALUE", WRONG_USAGE)
    return {name.replace("-", "_"): value for name, _, value in (text.partition("=") for text in texts or ())}
