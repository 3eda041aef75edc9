"""What several devices add up to: `python -m milkweed.bench.studies.engines BUNDLE`.

Each batch takes `--device-ms` more without the CPU, so that CPU engines stand for devices: what is measured is whether
the queue keeps all of them at work, not the forward. Clients ask in a closed loop, one batch a request.
"""

import argparse
import io
import threading
import time
from pathlib import Path

import httpx
import numpy as np

from ..http_overhead import running_server

BATCH = 8

_SLOW = """
import time
from milkweed.server.lanes import Lanes
quick = Lanes.run
def slow(self, pixels):
    time.sleep({seconds})
    return quick(self, pixels)
Lanes.run = slow
"""


def main() -> None:
    """Print images a second for each number of engines, and as a multiple of one engine's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path, help="a small model")
    parser.add_argument("--device-ms", type=float, default=50.0, help="that a batch takes besides")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--engines", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    rates = {n: measured(options.bundle, n, options.device_ms, options.seconds) for n in options.engines}
    one = rates[options.engines[0]] / options.engines[0]
    for engines, rate in rates.items():
        print(f"{engines} engines: {rate:.0f} images/s, {rate / one:.2f} x one", flush=True)


def measured(bundle: Path, engines: int, device_ms: float, seconds: float) -> float:
    """Images a second, after a tenth of the time to warm up.

    Raises:
        httpx.HTTPStatusError: a request was refused.
    """
    settings = {"device": ",".join(["cpu"] * engines), "max_batch_size": BATCH}
    with running_server(bundle, settings, _SLOW.format(seconds=device_ms / 1e3)) as (_, url):
        body, stop = _batch(), threading.Event()
        counts = [0] * (3 * engines)
        threads = [threading.Thread(target=_ask, args=(url, body, counts, place, stop)) for place in range(len(counts))]
        for thread in threads:
            thread.start()
        time.sleep(seconds / 10)
        before, started = sum(counts), time.perf_counter()
        time.sleep(seconds)
        rate = BATCH * (sum(counts) - before) / (time.perf_counter() - started)
        stop.set()
        for thread in threads:
            thread.join()
        return rate


def _batch() -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (BATCH, 32, 32, 3), dtype=np.uint8)
    out = io.BytesIO()
    np.save(out, pixels)
    return out.getvalue()


def _ask(url: str, body: bytes, counts: list[int], place: int, stop: threading.Event) -> None:
    with httpx.Client(timeout=60) as client:
        while not stop.is_set():
            answer = client.post(url + "/classify", content=body, headers={"content-type": "application/x-npy"})
            answer.raise_for_status()
            counts[place] += 1


if __name__ == "__main__":
    main()
