"""Tests the command as a process: its start-up, pipes, interrupts, a server and its client."""

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

from ..support.command import MILKWEED, Milkweed
from ..support.waiting import HANG_SECONDS

COMMANDS = ["serve", "import", "compress", "convert", "densify", "evaluate", "inspect", "classify", "models", "bench"]
ENVIRONMENT = {**os.environ, "PYTHONSAFEPATH": "1"}


@contextmanager
def _serving(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A warm server on a free port, and its URL."""
    command = [*MILKWEED, "serve", *map(str, arguments), "--port", "0", "--metrics-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        assert process.stdout is not None
        url = re.search(r"http://\S+", process.stdout.readline())
        assert url is not None
        yield process, url[0]
    finally:
        process.kill()
        process.communicate(timeout=HANG_SECONDS)


def _printed_after(arguments: list[str], then: str) -> str:
    """What a new process prints that runs the command and then some Python."""
    code = f"import gc, sys; from milkweed.cli import main; main({arguments}); {then}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    return ran.stdout


def test_help_imports_nothing_heavy() -> None:
    heavy = {"torch", "timm", "numpy", "pydantic", "fastapi", "PIL", "httpx"}
    printed = _printed_after(["--help"], f"print(*{heavy} & set(sys.modules))")
    assert printed.splitlines()[-1] == ""
    assert all(f"\n  {command} " in printed for command in COMMANDS)


def test_serve_imports_no_other_command() -> None:
    others = "(name for name in sys.modules if name.startswith('milkweed.cli.modelling'))"
    printed = _printed_after(["serve", "--help"], f"print(gc.isenabled(), *{others})")
    assert printed.splitlines()[-1] == "True"


def test_help_lists_all_commands_whatever_comes_after_it(milkweed: Milkweed) -> None:
    assert milkweed("--help", "serve").out == milkweed("--help").out
    assert milkweed("serve", "--help").out != milkweed("--help").out


def test_version_prints_the_packages_version(milkweed: Milkweed) -> None:
    ran = milkweed("--version")
    assert (ran.code, ran.out, ran.err) == (0, f"milkweed {version('milkweed')}\n", "")


def test_serve_has_an_option_for_each_setting(milkweed: Milkweed) -> None:
    from milkweed.server.config.settings import Settings

    text = milkweed("serve", "--help").out
    flags = set(re.findall(r"^  (--[a-z0-9-]+)", text, re.MULTILINE)) - {"--config", "--compress", "--images", "--help"}
    assert flags == {"--" + name.replace("_", "-") for name in Settings.model_fields}


@pytest.mark.parametrize("arguments", [("--help",), ("models", "deit_tiny*", "--json")])
@pytest.mark.slow_beyond(1)
def test_a_closed_pipe_is_quiet(arguments: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    # A process that another thread of the tests starts holds the reading end until its exec: wait until none is left.
    alone = select.poll()
    alone.register(write, 0)
    assert alone.poll(1000 * HANG_SECONDS) == [(write, select.POLLERR)]
    process = subprocess.Popen(
        [*MILKWEED, *arguments], stdout=write, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    os.close(write)
    _, err = process.communicate(timeout=HANG_SECONDS)
    assert (process.returncode, err) == (1, "")


@pytest.mark.slow_beyond(1)
def test_a_server_and_its_client_agree_with_the_bundle(
    milkweed: Milkweed, bundle: Path, tmp_path: Path, images: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILKWEED_FORMATS", "jpeg,png,webp,npy")  # as a server's, which takes fewer than a local model
    paths = [tmp_path / f"{number}.png" for number in range(4)]
    for path, image in zip(paths, images, strict=False):
        path.write_bytes(image)
    paths[3].write_bytes(b"no image")
    local = milkweed("classify", "--model", bundle, *paths, "--json")
    with _serving(f"tiny={bundle}") as (process, url):
        remote = milkweed("classify", "--url", url, *paths, "--json")
        best = milkweed("classify", "--url", f"{url}/classify", paths[0], "--top-k", 1)
        wrong = milkweed("classify", "--url", f"{url}/v1", paths[0])
        named = milkweed("classify", "--url", url, "--model", "tiny", *paths, "--json")
        unknown = milkweed("classify", "--url", url, "--model", "nobody", paths[0])
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_SECONDS) == 0
    assert remote.code == local.code == 1
    assert remote.document == local.document
    assert remote.document["model"] == "tiny"
    assert remote.err == local.err
    first = remote.document["results"][0]["predictions"][0]
    assert best.out == f"{paths[0]}\n  {first['score']:7.4f}  {first['label']} ({first['id']})\n"
    assert named.document == local.document
    assert unknown.err.startswith(f"milkweed: error: --url {url}: unknown_model: ")
    assert wrong.code == 1
    assert wrong.err.startswith(f"milkweed: error: --url {url}/v1: not_found: ")
    gone = milkweed("classify", "--url", url, paths[0])
    assert (gone.code, gone.out) == (1, "")
    assert gone.err.startswith(f"milkweed: error: --url {url}: no answer from {url}/classify: ")
