"""`milkweed bench server`: a server under load."""

from pathlib import Path
from typing import Annotated

import typer

from ...cli.errors import FAILED, WRONG_USAGE, CommandError
from ...cli.options import Json, Plot, number_option
from ...cli.output import note, print_rich
from .options import Out, chosen, numbers, pairs, text_option
from .output import check_files, finish

HEADINGS = {
    "--url": "What is put under load",
    "--sections": "What is measured",
    "--arrivals": "Open loop and overload",
    "--restarts": "Restarts, reloads, soak",
}
"""By the option that begins a part of the help."""

BUNDLE = typer.Argument(metavar="BUNDLE", help="Folder of the bundle; a tiny ViT of random weights if not given.")
URL = text_option("--url", "URL", "Measure a server that runs already: no CPU, memory or restarts then.")
ARCH = text_option("--arch", "NAME", "Serve this architecture with random weights.")
API_KEY = text_option("--api-key", "KEY", "Key sent as X-API-Key.")
SET = text_option("--set", "NAME=VALUE", "Setting of the server that is started; repeatable.")
SECTIONS = text_option(
    "--sections",
    "LIST",
    "Some of capacity, load, overload, malformed, rolling, reload, soak; not given: all but soak.",
)
BODY = text_option(
    "--body", "LIST", "Some of raw, multipart, json, npy: the capacity of each; all else with the first."
)
PHOTOS = text_option("--photos", "DIR", "Folder of JPEGs to post; made ones if not given.")
IMAGES = number_option("--images", "Images of one request.")
SECONDS = number_option("--seconds", "Seconds that each row is measured.", least=0.5, kind=float)
CONCURRENCY = number_option("--concurrency", "Connections that the search for the capacity begins with.")
CLIENTS = number_option("--clients", "Processes that send; more where one cannot keep up.")
ARRIVALS = text_option("--arrivals", "poisson|fixed", "When requests start: as of independent users, or evenly.")
LOADS = text_option("--loads", "LIST", "Rates of the section load, as shares of the capacity.")
RATES = text_option("--rates", "LIST", "Rates in requests a second instead; one for rolling, reload, soak.")
TIMEOUT = number_option("--timeout-ms", "Milliseconds until the client gives up; overload has its own.")
OVERLOAD = number_option(
    "--overload", "Rate of the section overload, as a multiple of the capacity.", least=0.1, kind=float
)
OVERLOAD_TIMEOUT = number_option("--overload-timeout-ms", "Milliseconds until the client gives up in overload.")
MALFORMED = number_option("--malformed", "Share of malformed requests among good ones, 0 to 1.", least=0, kind=float)
RESTARTS = number_option("--restarts", "Restarts in the section rolling.")
RELOADS = number_option("--reloads", "Reloads in the section reload.")
DELAY = number_option("--endpoint-delay-ms", "Milliseconds until the client hears that a server is not ready.", least=0)
MINUTES = number_option("--minutes", "Minutes of the section soak.", least=0.01, kind=float)


def server(
    bundle: Annotated[Path | None, BUNDLE] = None,
    url: Annotated[str | None, URL] = None,
    arch: Annotated[str | None, ARCH] = None,
    api_key: Annotated[str | None, API_KEY] = None,
    settings: Annotated[list[str] | None, SET] = None,
    sections: Annotated[str | None, SECTIONS] = None,
    body: Annotated[str | None, BODY] = None,
    photos: Annotated[Path | None, PHOTOS] = None,
    images: Annotated[int, IMAGES] = 1,
    seconds: Annotated[float, SECONDS] = 10.0,
    concurrency: Annotated[int, CONCURRENCY] = 32,
    clients: Annotated[int, CLIENTS] = 1,
    arrivals: Annotated[str, ARRIVALS] = "poisson",
    loads: Annotated[str, LOADS] = "0.3,0.5,0.8",
    rates: Annotated[str | None, RATES] = None,
    timeout_ms: Annotated[int, TIMEOUT] = 10_000,
    overload: Annotated[float, OVERLOAD] = 2.0,
    overload_timeout_ms: Annotated[int, OVERLOAD_TIMEOUT] = 500,
    malformed: Annotated[float, MALFORMED] = 0.09,
    restarts: Annotated[int, RESTARTS] = 4,
    reloads: Annotated[int, RELOADS] = 10,
    endpoint_delay_ms: Annotated[int, DELAY] = 400,
    minutes: Annotated[float, MINUTES] = 10.0,
    plot: Plot = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Put a server under load: how much, how fast, what breaks.

    Capacity, latency against load, overload, bad neighbours, restarts. Open loop: requests start on a schedule,
    whether or not the server keeps up; latency counts from the intended start. Exits with 1 where requests were lost,
    answered wrongly or refused without Retry-After, or good ones failed below capacity.

    \b
    Examples:
      milkweed bench server --seconds 10 --plot server.svg
      milkweed bench server ./deit --photos ./photos --sections capacity,load
      milkweed bench server --sections soak --minutes 30
    """
    from ..load import requests
    from ..load.connection import ConnectionFailed
    from ..load.plan import ARRIVALS, Watch
    from ..plots import server as draw
    from ..server import request
    from ..server.run import DEFAULT_OUT, run
    from ..server.tables import line, table

    if sum(value is not None for value in (bundle, url, arch)) > 1:
        raise CommandError("give one of BUNDLE, --url and --arch", WRONG_USAGE)
    if malformed > 1:
        raise CommandError(f"--malformed {malformed:g}: expected a share, 0 to 1", WRONG_USAGE)
    usual = request.usual_sections(url)
    asked = request.Request(
        bundle=bundle,
        url=url,
        arch=arch,
        api_key=api_key,
        settings=pairs("--set", settings),
        sections=chosen("--sections", sections, request.SECTIONS) if sections is not None else usual,
        bodies=chosen("--body", body, requests.KINDS) if body is not None else None,
        photos=photos,
        images=images,
        seconds=seconds,
        concurrency=concurrency,
        clients=clients,
        timeout_seconds=timeout_ms / 1e3,
        arrivals=chosen("--arrivals", arrivals, ARRIVALS)[0],
        loads=numbers("--loads", loads),
        rates=numbers("--rates", rates),
        overload=overload,
        overload_timeout_seconds=overload_timeout_ms / 1e3,
        malformed_share=malformed,
        restarts=restarts,
        reloads=reloads,
        watch=Watch(delay_seconds=endpoint_delay_ms / 1e3),
        soak_minutes=minutes,
    )
    check_files(out, plot, DEFAULT_OUT)
    try:
        document = run(asked, say=lambda row: note(line(row)))
    except ConnectionFailed as error:
        raise CommandError(f"{f'--url {url}' if url else 'the server'}: no connection: {error.outcome}") from error
    finish(document, out, DEFAULT_OUT, json, plot, draw, secret=api_key)
    if not json:
        print_rich(table(document))
    if document["complaints"]:
        raise CommandError("; ".join(document["complaints"]), FAILED)
