"""Options of `milkweed bench server`: all that a row of load can be told."""

from pathlib import Path
from typing import Annotated

import typer

from .failure import WRONG_USAGE, Failure
from .options import number_option, split_list

Server = Annotated[
    Path | None,
    typer.Argument(metavar="BUNDLE", help="Folder of the bundle; a tiny ViT of random weights if not given."),
]
Url = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="A server that runs already: no CPU, no memory, no restarts.")
]
Arch = Annotated[
    str | None, typer.Option("--arch", metavar="NAME", help="Serve this architecture with random weights.")
]
Sections = Annotated[
    str | None,
    typer.Option(
        "--sections",
        metavar="LIST",
        help="Some of capacity, load, overload, malformed, rolling, reload, soak; all but soak if not given.",
    ),
]
Bodies = Annotated[
    str | None,
    typer.Option(
        "--body",
        metavar="LIST",
        help="Some of raw, multipart, json, npy: each one's capacity; the rest with the first.",
    ),
]
Photos = Annotated[
    Path | None, typer.Option("--photos", metavar="DIR", help="Folder of JPEGs to post; made ones if not given.")
]
Images = Annotated[int, number_option("--images", "Of a request.")]
Seconds = Annotated[float, number_option("--seconds", "Of a row.", least=0.5, kind=float)]
Concurrency = Annotated[int, number_option("--concurrency", "Connections of the first capacity row.")]
Clients = Annotated[int, number_option("--clients", "Client processes.")]
Arriving = Annotated[
    str, typer.Option("--arrivals", metavar="poisson|fixed", help="When requests of an open loop start.")
]
Loads = Annotated[
    str, typer.Option("--loads", metavar="LIST", help="Rates of the load section, as shares of the capacity.")
]
Rates = Annotated[
    str | None,
    typer.Option("--rates", metavar="LIST", help="The same, requests a second; one for rolling, reload, soak."),
]
Times = Annotated[
    float, number_option("--overload", "Rate of the overload section, times the capacity.", least=0.1, kind=float)
]
Timeout = Annotated[int, number_option("--timeout-ms", "After which the client gives up; overload has its own.")]
OverloadTimeout = Annotated[int, number_option("--overload-timeout-ms", "The same, of the overload section.")]
Malformed = Annotated[
    float, number_option("--malformed", "Share of malformed requests among good ones.", least=0, kind=float)
]
Restarts = Annotated[int, number_option("--restarts", "Of the rolling section.")]
Reloads = Annotated[int, number_option("--reloads", "Of the reload section.")]
Delay = Annotated[
    int, number_option("--endpoint-delay-ms", "Until the client hears that a server is not ready.", least=0)
]
Minutes = Annotated[float, number_option("--minutes", "Of the soak section.", least=0.01, kind=float)]
ApiKey = Annotated[str | None, typer.Option("--api-key", metavar="KEY", help="Sent as X-API-Key.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the server that is started; repeatable."),
]
Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Where the picture goes (.svg, .png); none if not given.")
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


def pairs(flag: str, texts: list[str] | None) -> dict[str, str]:
    """NAME=VALUE arguments.

    Raises:
        Failure: one without '='.
    """
    for text in texts or ():
        if "=" not in text:
            raise Failure(f"{flag} {text}: expected NAME=VALUE", WRONG_USAGE)
    return {name.replace("-", "_"): value for name, _, value in (text.partition("=") for text in texts or ())}
