"""`milkweed bench server`: a server under load."""

from . import bench_options as given
from .bench_output import check_files, finish
from .failure import FAILED, WRONG_USAGE, Failure
from .options import Json, Plot
from .output import note, print_rich


def server(
    bundle: given.Server = None,
    url: given.Url = None,
    arch: given.Arch = None,
    api_key: given.ApiKey = None,
    settings: given.Settings = None,
    sections: given.Sections = None,
    body: given.Bodies = None,
    photos: given.Photos = None,
    images: given.Images = 1,
    seconds: given.Seconds = 10.0,
    concurrency: given.Concurrency = 32,
    clients: given.Clients = 1,
    arrivals: given.Arriving = "poisson",
    loads: given.Loads = "0.3,0.5,0.8",
    rates: given.Rates = None,
    timeout_ms: given.Timeout = 10_000,
    overload: given.Times = 2.0,
    overload_timeout_ms: given.OverloadTimeout = 500,
    malformed: given.Malformed = 0.09,
    restarts: given.Restarts = 4,
    reloads: given.Reloads = 10,
    endpoint_delay_ms: given.Delay = 400,
    minutes: given.Minutes = 10.0,
    plot: Plot = None,
    out: given.Out = None,
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
    from ...bench.load.connection import ConnectionFailed
    from ...bench.load.plan import Watch
    from ...bench.load.schedule import ARRIVALS
    from ...bench.plots import server as draw
    from ...bench.serving import run as bench
    from ...bench.serving.bodies import KINDS
    from ...bench.serving.sections import Options
    from ...bench.serving.tables import line, table

    if sum(value is not None for value in (bundle, url, arch)) > 1:
        raise Failure("give one of BUNDLE, --url and --arch", WRONG_USAGE)
    if malformed > 1:
        raise Failure(f"--malformed {malformed:g}: expected a share, 0 to 1", WRONG_USAGE)
    request = bench.Request(
        bundle=bundle,
        url=url,
        arch=arch,
        sections=given.chosen("--sections", sections, bench.SECTIONS) or bench.usual(url),
        bodies=given.chosen("--body", body, KINDS),
        photos=photos,
        images=images,
        seconds=seconds,
        concurrency=concurrency,
        clients=clients,
        timeout_seconds=timeout_ms / 1e3,
        api_key=api_key,
        settings=given.pairs("--set", settings),
        restarts=restarts,
        reloads=reloads,
        watch=Watch(delay_seconds=endpoint_delay_ms / 1e3),
        options=Options(
            arrivals=(given.chosen("--arrivals", arrivals, ARRIVALS) or ["poisson"])[0],
            loads=given.numbers("--loads", loads),
            rates=given.numbers("--rates", rates),
            overload=overload,
            overload_timeout_seconds=overload_timeout_ms / 1e3,
            malformed_share=malformed,
            soak_minutes=minutes,
        ),
    )
    check_files(out, plot, bench.DEFAULT_OUT)
    try:
        document = bench.run(request, say=lambda row: note(line(row)))
    except ConnectionFailed as error:
        raise Failure(f"{f'--url {url}' if url else 'the server'}: no connection: {error.outcome}") from error
    finish(document, out, bench.DEFAULT_OUT, json, plot, draw, secret=api_key)
    if not json:
        print_rich(table(document))
    if document["complaints"]:
        raise Failure("; ".join(document["complaints"]), FAILED)
