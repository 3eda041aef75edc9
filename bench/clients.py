"""Closed-loop clients of a server: kept connections that post image after image, as many processes as are started.

    python -m milkweed.bench.clients URL FOLDER --connections 48 --start-at 1790000000.5 --seconds 6

Imports nothing heavy. All begin at once; what is answered between `start-at` and its end counts.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

WARM_UP_SECONDS = 1.0
START_SECONDS = 1.0
"""For the processes to be there."""

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Load:
    """What clients saw: answers with 200 a second and their latencies, and all statuses."""

    images_per_second: float
    p50_ms: float
    p99_ms: float
    statuses: dict[str, int]


def load(url: str, folder: Path, *, clients: int, connections: int, seconds: float) -> Load:
    """Put a server under load with the files of a folder, from processes of their own.

    Raises:
        RuntimeError: nothing was answered.
    """
    start_at = time.time() + START_SECONDS + WARM_UP_SECONDS
    command = [sys.executable, "-m", "milkweed.bench.clients", url, str(folder)]
    command += [f"--connections={connections}", f"--start-at={start_at}", f"--seconds={seconds}"]
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(clients)]
    latencies: list[float] = []
    statuses: Counter[str] = Counter()
    for process in running:
        said, _ = process.communicate(timeout=seconds + 120)
        found = json.loads(said or "{}")
        latencies += found.get("latencies_ms", [])
        statuses += Counter(found.get("statuses", {}))
    if not latencies:
        raise RuntimeError(f"clients got no answer in time: {dict(statuses)}")
    cuts = quantiles(latencies, n=100, method="inclusive") if len(latencies) > 1 else latencies * 99
    return Load(round(len(latencies) / seconds, 1), round(cuts[49], 2), round(cuts[98], 2), dict(statuses))


class Client:
    """The connections of one process."""

    def __init__(self, url: str, bodies: list[bytes], start_at: float, seconds: float) -> None:
        self._host, port = url.removeprefix("http://").rsplit(":", 1)
        self._port, self._bodies = int(port), bodies
        self._begin, self._end = start_at, start_at + seconds
        self.latencies_ms: list[float] = []
        self.statuses: Counter[str] = Counter()

    async def run(self, connections: int) -> None:
        """Until the end, warming up until the beginning."""
        await asyncio.sleep(max(0.0, self._begin - WARM_UP_SECONDS - time.time()))
        await asyncio.gather(*(self._connection(number) for number in range(connections)))

    async def _connection(self, at: int) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
        while (started := time.time()) < self._end:
            body = self._bodies[at % len(self._bodies)]
            at += 1
            try:
                status = await self._post(reader, writer, body)
            except (OSError, asyncio.IncompleteReadError) as error:
                status = type(error).__name__
                writer.close()
                reader, writer = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
            self._count(status, started, time.time())
        writer.close()

    async def _post(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> str:
        head = f"POST /classify HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: image/jpeg\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
        writer.write(body)
        await writer.drain()
        headers = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(headers)
        await reader.readexactly(int(length[1]) if length else 0)
        return headers[9:12].decode()

    def _count(self, status: str, started: float, ended: float) -> None:
        if not self._begin <= ended <= self._end:
            return
        self.statuses[status] += 1
        if status == "200":
            self.latencies_ms.append(round((ended - started) * 1e3, 2))


def main() -> None:
    """Command line: one process; prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--connections", type=int, default=48)
    parser.add_argument("--start-at", type=float, default=0.0, help="seconds since 1970; at once if not given")
    parser.add_argument("--seconds", type=float, default=6.0)
    given = parser.parse_args()
    bodies = [path.read_bytes() for path in sorted(given.folder.iterdir())]
    begin = given.start_at or time.time() + WARM_UP_SECONDS
    client = Client(given.url, bodies, begin, given.seconds)
    asyncio.run(client.run(given.connections))
    print(json.dumps({"latencies_ms": client.latencies_ms, "statuses": client.statuses}))


if __name__ == "__main__":
    main()
