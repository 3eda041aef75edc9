"""`milkweed bench server`: a server under load."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ...cli.errors import FAILED, WRONG_USAGE, CommandError
from ...cli.options import Json, Plot, decimal_option, filled, number_option, takes, text_option
from ...cli.output import note
from .options import Out, bundle_argument, chosen, numbers, pairs
from .output import Files

HEADINGS = {
    "--url": "What is put under load",
    "--sections": "What is measured",
    "--arrivals": "Open loop and overload",
    "--restarts": "Restarts, reloads, soak",
}
"""The headings of the help, by the option that begins each part."""

SECTIONS = "Some of capacity, load, overload, malformed, rolling, reload, soak; not given: all but soak."
BODY = "Some of raw, multipart, json, npy: the capacity of each; all else with the first."
SECONDS = decimal_option("Seconds that each row is measured.", least=0.5)
OVERLOAD = decimal_option("Rate of the section overload, as a multiple of the capacity.", least=0.1)
DELAY = number_option("Milliseconds until the client hears that a server is not ready.", least=0)


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The options of `milkweed bench server`."""

    bundle: Annotated[
        Path | None, bundle_argument("Folder of the bundle; a tiny ViT of random weights if not given.")
    ] = None
    url: Annotated[
        str | None, text_option("URL", "Measure a server that runs already: no CPU, memory or restarts then.")
    ] = None
    arch: Annotated[str | None, text_option("NAME", "Serve this architecture with random weights.")] = None
    api_key: Annotated[str | None, text_option("KEY", "Key sent as X-API-Key.")] = None
    settings: Annotated[
        list[str] | None,
        text_option("NAME=VALUE", "Setting of the server that is started; repeatable.", "--set"),
    ] = None
    sections: Annotated[str | None, text_option("LIST", SECTIONS)] = None
    body: Annotated[str | None, text_option("LIST", BODY)] = None
    photos: Annotated[Path | None, text_option("DIR", "Folder of JPEGs to post; made ones if not given.")] = None
    images: Annotated[int, number_option("Images of one request.")] = 1
    seconds: Annotated[float, SECONDS] = 10.0
    concurrency: Annotated[int, number_option("Connections that the search for the capacity begins with.")] = 32
    clients: Annotated[int, number_option("Processes that send; more where one cannot keep up.")] = 1
    arrivals: Annotated[
        str, text_option("poisson|fixed", "When requests start: as of independent users, or evenly.")
    ] = "poisson"
    loads: Annotated[str, text_option("LIST", "Rates of the section load, as shares of the capacity.")] = "0.3,0.5,0.8"
    rates: Annotated[
        str | None, text_option("LIST", "Rates in requests a second instead; one for rolling, reload, soak.")
    ] = None
    timeout_ms: Annotated[int, number_option("Milliseconds until the client gives up; overload has its own.")] = 10_000
    overload: Annotated[float, OVERLOAD] = 2.0
    overload_timeout_ms: Annotated[int, number_option("Milliseconds until the client gives up in overload.")] = 500
    malformed: Annotated[float, decimal_option("Share of malformed requests among good ones, 0 to 1.")] = 0.09
    restarts: Annotated[int, number_option("Restarts in the section rolling.")] = 4
    reloads: Annotated[int, number_option("Reloads in the section reload.")] = 10
    endpoint_delay_ms: Annotated[int, DELAY] = 400
    minutes: Annotated[float, decimal_option("Minutes of the section soak.", least=0.01)] = 10.0
    plot: Plot = None
    out: Out = None
    json: Json = False


@takes(ServerOptions)
def server(options: ServerOptions) -> None:
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
    from ..load.connection import ConnectionFailed
    from ..load.plan import ARRIVALS, Watch
    from ..load.requests import KINDS
    from ..plots import server as draw
    from ..server import request
    from ..server.run import DEFAULT_OUT, run
    from ..server.tables import line, print_rows

    url, sections = options.url, options.sections
    if sum(value is not None for value in (options.bundle, url, options.arch)) > 1:
        raise CommandError("give one of BUNDLE, --url and --arch", WRONG_USAGE)
    if options.malformed > 1:
        raise CommandError(f"--malformed {options.malformed:g}: expected a share, 0 to 1", WRONG_USAGE)
    asked = filled(
        request.Request,
        options,
        settings=pairs("--set", options.settings),
        sections=request.usual_sections(url) if sections is None else chosen("--sections", sections, request.SECTIONS),
        bodies=None if options.body is None else chosen("--body", options.body, KINDS),
        timeout_seconds=options.timeout_ms / 1e3,
        arrivals=chosen("--arrivals", options.arrivals, ARRIVALS)[0],
        loads=numbers("--loads", options.loads),
        rates=numbers("--rates", options.rates),
        overload_timeout_seconds=options.overload_timeout_ms / 1e3,
        malformed_share=options.malformed,
        watch=Watch(delay_seconds=options.endpoint_delay_ms / 1e3),
        soak_minutes=options.minutes,
    )
    files = Files(DEFAULT_OUT, draw, options.out, options.plot, options.json)
    try:
        document = run(asked, say=lambda row: note(line(row)))
    except ConnectionFailed as error:
        raise CommandError(f"{f'--url {url}' if url else 'the server'}: no connection: {error.outcome}") from error
    files.finish(document, print_rows, secret=options.api_key)
    if document["complaints"]:
        raise CommandError("; ".join(document["complaints"]), FAILED)
