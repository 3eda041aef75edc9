"""Goes through the commands of a page in a folder of its own, as a person with a shell would."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from milkweed.bench.ports import free_port

from ..support.forked import Forked, Forker, environment
from ..support.waiting import HANG_SECONDS
from .blocks import ROOT, Block, words

MAKES = {"import": 3, "convert": 3, "densify": 3, "train": 2}
"""Which word of these commands is the bundle that they write."""
TOO_LARGE = {"deit"}
"""What a page makes of real size, and what a small one takes the place of in its next block."""
_MILKWEED = "import sys; from milkweed.cli import main; sys.exit(main())"
_AS_MODULE = "import runpy, sys; sys.argv.pop(0); runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"


@dataclass
class Walk:
    """One page's folder and server. Ports are free ones in place of 8000, 8001 and 8002.

    Args:
        placeholders: folder with what the commands speak of.
    """

    folder: Path
    forker: Forker
    placeholders: Path
    put: set[str] = field(default_factory=set)
    server: Forked | None = None
    key: str = ""
    ports: Mapping[str, str] = field(default_factory=lambda: {f"800{n}": str(free_port()) for n in range(3)})

    def block(self, block: Block, commands: list[str]) -> str:
        """Run some commands of a block; what they printed."""
        made = {parts[MAKES[parts[1]]] for parts in map(words, commands) if parts[1:] and parts[1] in MAKES}
        for thing in sorted(self.placeholders.iterdir()):
            if re.search(rf"(?<![\w.-]){re.escape(thing.name)}(?![\w.-])", block.text):
                self._put(thing, {name.removeprefix("./") for name in made})
        return "".join(self.command(command) for command in commands)

    def command(self, command: str) -> str:
        """Run one; what it printed. A server runs on until the next one, or the end."""
        command = self._here(command)
        parts = words(command)
        if parts[:2] == ["make", "serve"]:
            dry = ["make", "--dry-run", "--no-print-directory", "serve"]
            parts = words(subprocess.check_output(dry, cwd=ROOT, text=True).splitlines()[-1])
            parts[-1] = self.ports["8000"]
        program = parts[0].rsplit("/", 1)[-1]
        if program == "milkweed" and parts[1] == "serve":
            return self._serve(parts[1:])
        if program == "milkweed" and parts[1] == "doctor":  # looks whether ports are free
            self.stop()
        if program == "milkweed":
            return self._milkweed(parts[1:])
        command = command.replace(".venv/bin/", "")  # on PATH below
        run = subprocess.run(
            ["bash", "-euc", command], cwd=self.folder, env=self._environment(), capture_output=True, text=True,
            errors="replace", timeout=HANG_SECONDS,
        )  # fmt: skip
        assert run.returncode == 0, f"{command}: {run.stdout}{run.stderr}"
        return run.stdout

    def python(self, code: str) -> str:
        """Run a program in the folder; what it printed."""
        return self._finish(self._fork(self._here(code), []), code)

    def usage(self, module: str) -> str:
        """What `python -m MODULE --help` prints."""
        return self._finish(self._fork(_AS_MODULE, [module, "--help"]), module)

    def stop(self) -> None:
        """End the server as a person would; it answers what it has and exits with 0."""
        if self.server is not None:
            self.server.send_signal(2)
            server, self.server = self.server, None
            assert server.wait(HANG_SECONDS) == 0
            server.stdout.close()
            server.stderr.close()

    def _here(self, text: str) -> str:
        return re.sub(r"\b800[0-2]\b", lambda port: self.ports[port[0]], text).replace("mw_...", self.key)

    def _put(self, thing: Path, made: set[str]) -> None:
        """Put a placeholder where a block speaks of it, unless the block makes it, or one before has."""
        place = self.folder / thing.name
        if place.is_symlink():  # the repository's own
            return
        if thing.name in self.put or thing.name in TOO_LARGE:
            shutil.rmtree(place, ignore_errors=True)
            place.unlink(missing_ok=True)
            self.put.discard(thing.name)
        if place.exists() or thing.name in made:
            return
        self.put.add(thing.name)
        if thing.is_dir():
            shutil.copytree(thing, place)
        else:
            shutil.copy(thing, place)

    def _serve(self, args: list[str]) -> str:
        self.stop()
        self.server = self._fork(_MILKWEED, args)
        log: list[str] = []
        Thread(target=lambda server: log.extend(server.stderr), args=(self.server,), daemon=True).start()
        line = self.server.stdout.readline()
        assert line.startswith("milkweed serves"), f"milkweed {args}: {line}{log}"
        return line

    def _milkweed(self, args: list[str]) -> str:
        into = next(((place, mode) for place, mode in ((">>", "a"), (">", "w")) if place in args), None)
        target = args[args.index(into[0]) + 1] if into else ""
        out = self._finish(self._fork(_MILKWEED, args[: args.index(into[0])] if into else args), " ".join(args))
        if into:
            with (self.folder / target).open(into[1]) as file:
                file.write(out)
        return out

    def _fork(self, program: str, arguments: list[str]) -> Forked:
        prelude = f"import os; os.chdir({str(self.folder)!r})\n"
        return self.forker.start(prelude + program, arguments, self._environment())

    def _finish(self, process: Forked, what: str) -> str:
        errors: list[str] = []
        reader = Thread(target=lambda: errors.extend(process.stderr))
        reader.start()
        with process.stdout, process.stderr:
            out = process.stdout.read()
            reader.join()
        assert process.wait(HANG_SECONDS) == 0, f"{what}: {out}{''.join(errors)}"
        self.key = next(iter(re.findall(r"\bmw_[\w-]+", "".join(errors))), self.key)
        return out

    def _environment(self) -> dict[str, str]:
        return environment() | {
            "CURL_HOME": str(self.folder),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "MILKWEED_PORT": self.ports["8000"],
            "MILKWEED_METRICS_PORT": self.ports["8001"],
            "MILKWEED_DRAIN_GRACE_HANG_SECONDS": "0",
            "MILKWEED_CPU_GRAPHS": "false",  # starts sooner
            "MILKWEED_LANES": "1",
            "MILKWEED_THREADS_PER_IMAGE": "1",
        }


@contextmanager
def walking(folder: Path, forker: Forker, placeholders: Path) -> Iterator[Walk]:
    """A walk whose server ends with it."""
    (folder / ".curlrc").write_text("silent\nshow-error\nfail-with-body\n")
    walk = Walk(folder, forker, placeholders)
    try:
        yield walk
        walk.stop()
    finally:
        if walk.server is not None:
            walk.server.kill()
