"""A server process of ours, as `milkweed serve` starts it; its output is collected as it comes."""

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx

from .forked import Forked, Forker, environment
from .waiting import HANG_SECONDS

_MILKWEED = "import sys; from milkweed.cli import main; sys.exit(main())"


def sample_at(url: str, sample: str) -> float:
    """A sample of /metrics as it is written in the exposition; 0 where it is not."""
    text = httpx.get(url + "/metrics", trust_env=False).text
    match = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
    return float(match[1]) if match else 0.0


class Server:
    """One server process; its output is collected as it comes.

    It computes in float32 unless told otherwise, so that its answers are the same wherever they are tested.

    Args:
        forker: forks it from a process that has done the imports; `None` starts Python anew.
    """

    def __init__(
        self, forker: Forker | None, bundles: dict[str, Path], settings: dict[str, object], prelude: str = ""
    ) -> None:
        settings = {"port": 0, "metrics_port": 0, "dtype": "float32", "drain_grace_seconds": 0.2, **settings}
        arguments = [f"{name}={path}" for name, path in bundles.items()]
        arguments += [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        arguments = ["serve", *arguments]
        self.process: subprocess.Popen[str] | Forked
        if forker is not None:
            self.process = forker.start(prelude + _MILKWEED, arguments, environment())
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-c", prelude + _MILKWEED, *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(),
            )
        self.log: list[str] = []
        self.url = self.line = self.metrics_url = ""
        self._logged = threading.Condition()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._logged:
                self.log.append(line)
                self._logged.notify_all()

    def wait_ready(self) -> str:
        """Wait for the line that is printed once the models are warm; the URL in it."""
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        found = re.search(r"https?://\S+", self.line)
        assert found, f"no start: {self.exit()} {self.log}"
        self.url = found[0]
        return self.url

    def wait_log(self, words: str) -> str:
        """Wait for a line on stderr."""
        with self._logged:
            found = self._logged.wait_for(lambda: [line for line in self.log if words in line], HANG_SECONDS)
        assert found, f"{words!r} not in {self.log}"
        return found[0]

    def metric(self, sample: str, url: str | None = None) -> float:
        """A sample of this server, or of another URL."""
        return sample_at(url or self.url, sample)

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def exit(self) -> int:
        """Wait for the end; the exit code."""
        code = self.process.wait(HANG_SECONDS)
        self._reader.join(HANG_SECONDS)
        return code

    def close(self) -> None:
        """Kill it where it still runs, wait for its end and close its pipes."""
        if self.process.poll() is None:
            self.process.kill()
        self.exit()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()
