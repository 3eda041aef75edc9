"""A stranger's walk: a clean clone, nothing set, the commands of README.md and docs/start.md in order, as written.

    python tests/docs/stranger.py REPOSITORY WORK FILES

REPOSITORY is cloned to WORK/milkweed; HOME is WORK/home; PATH is this shell's. FILES is a folder of what a reader has:
deit_tiny.safetensors, imagenet_classes.tsv, photos/, dog.jpg. Ports are 8000 and 8001, as written. Prints how long each
command took, what was passed over and why, and when the first answer came. No test: it installs.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from blocks import words

PAGES = ("README.md", "docs/start.md")
SECONDS = 1800
PASSED_OVER = (
    (r"make (test|test-deploy|check|docs|kernels)\b", "minutes; the first is what CI runs"),
    (r"docker |kubectl ", "needs Docker, or a cluster"),
    (r".*--device cuda|.*\[dali\]", "needs a GPU"),
    (r".*milkweed train ", "hours"),
)


class Stranger:
    """One person with one shell for the server and one for the rest."""

    def __init__(self, clone: Path, environment: dict[str, str]) -> None:
        self.clone, self.environment = clone, environment
        self.server: subprocess.Popen[str] | None = None

    def type(self, command: str) -> tuple[bool, str]:
        """Run a command; whether it did what it should, and what it printed."""
        if re.match(r"make serve|.*milkweed serve", command):
            return self._serve(command)
        if "milkweed doctor" in command:  # looks whether ports are free
            self.stop()
        run = subprocess.run(
            ["bash", "-euc", command],
            cwd=self.clone,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        return run.returncode == 0 and not run.stdout.startswith('{"error"'), run.stdout + run.stderr

    def stop(self) -> None:
        """Ctrl-C where the server runs."""
        if self.server is not None:
            os.killpg(self.server.pid, signal.SIGINT)
            self.server.wait(SECONDS)
            self.server = None

    def _serve(self, command: str) -> tuple[bool, str]:
        self.stop()
        self.server = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.clone,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self.server.stdout is not None
        lines = []
        for line in self.server.stdout:
            lines.append(line)
            if line.startswith("milkweed serves"):
                return True, line
        return False, "".join(lines)


def main() -> int:
    """Walk; the exit code is the number of commands that failed."""
    repository, work, files = (Path(arg).resolve() for arg in sys.argv[1:])
    clone = work / "milkweed"
    (work / "home").mkdir(parents=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(work / "home"), "LANG": "C.UTF-8", "TERM": "dumb"}
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    began = time.monotonic()
    subprocess.run(["git", "clone", "--quiet", repository, clone], check=True, env=environment)
    shutil.copytree(files, clone, dirs_exist_ok=True)
    stranger = Stranger(clone, environment)
    failed, answered = 0, False
    try:
        for page, command in [pair for name in PAGES for pair in commands_of(clone, name)]:
            why = next((why for begins, why in PASSED_OVER if re.match(begins, command)), None)
            start = time.monotonic()
            good, printed = stranger.type(command) if why is None else (True, "")
            now = time.monotonic()
            failed += not good
            said = f"({why})" if why else f"{now - start:.1f} s" if good else f"FAILED: {printed}"
            print(f"{page}\t{command.partition('#')[0].strip()}\t{said}", flush=True)
            if not answered and '"predictions"' in printed:
                answered = True
                print(f"the first answer: {now - began:.0f} s from git clone", flush=True)
    finally:
        stranger.stop()
    print(f"{failed} failed, load average {os.getloadavg()[0]:.1f}")
    return failed


def commands_of(clone: Path, page: str) -> list[tuple[str, str]]:
    """Those of a page as it is cloned, in order, each with the page."""
    text = (clone / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(page, line) for block in blocks for line in block.replace("\\\n", " ").splitlines() if words(line)]


if __name__ == "__main__":
    sys.exit(main())
