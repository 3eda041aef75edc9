"""`milkweed bench server`: a server under load."""

from dataclasses import dataclass

from ...cli.errors import FAILED, WRONG_USAGE, CommandError
from ...cli.options import Json, Plot, takes
from ...cli.output import note
from ..load.plan import ARRIVALS
from ..options import Out, chosen
from ..server.request import Request
from .output import Files

HEADINGS = {
    "--url": "What is put under load",
    "--sections": "What is measured",
    "--arrivals": "Open loop and overload",
    "--restarts": "Restarts, reloads, soak",
}
"""The headings of the help, by the option that begins each part."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Request):
    """The options of `milkweed bench server`: what is measured, and where it goes."""

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
    from ..plots import server as draw
    from ..server.run import DEFAULT_OUT, run
    from ..server.tables import line, print_rows

    if sum(value is not None for value in (options.bundle, options.url, options.arch)) > 1:
        raise CommandError("give one of BUNDLE, --url and --arch", WRONG_USAGE)
    if options.malformed > 1:
        raise CommandError(f"--malformed {options.malformed:g}: expected a share, 0 to 1", WRONG_USAGE)
    chosen("--arrivals", options.arrivals, ARRIVALS)
    files = Files(DEFAULT_OUT, draw, options.out, options.plot, options.json)
    try:
        document = run(options, on_row=lambda row: note(line(row)))
    except ConnectionFailed as error:
        where = f"--url {options.url}" if options.url else "the server"
        raise CommandError(f"{where}: no connection: {error.outcome}") from error
    files.finish(document, print_rows, secret=options.api_key)
    if document["complaints"]:
        raise CommandError("; ".join(document["complaints"]), FAILED)
