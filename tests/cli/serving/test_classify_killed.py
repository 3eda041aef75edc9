"""Tests `milkweed classify` ended in the middle and resumed, against a server whose answers are known."""

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import pytest

from ...sdk.client.answering import answers, images_of, refusal
from ...support.command import MILKWEED
from ...support.fake_server import Answering, Fake, fake_server
from ...support.waiting import HANG_SECONDS, eventually

COUNT = 100


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files whose contents tell which they are, so that the made-up server's answer does."""
    root = tmp_path_factory.mktemp("files")
    for number in range(COUNT):
        (root / f"{number:03d}.png").write_text(f"image {number}" if number != 40 else "!")
    return root


def command(fake: Fake, files: Path, out: Path, *more: str) -> list[str]:
    url = f"http://127.0.0.1:{fake.port}"
    return [*MILKWEED, "classify", str(files), "--url", url, "--output", str(out), *more]


def answering(most: int, served: list[Fake], refused: bytes = b"") -> Answering:
    """Answers requests whose images are among the first `most`; others are held, or `refused`."""

    async def say(number: int, body: bytes) -> bytes:
        images = images_of(served[0].heads[number], body)
        if max(int(image.removeprefix(b"image ")) for image in images if image != b"!") < most:
            return answers(images)
        if not refused:
            await asyncio.sleep(600)
        return refused

    return say


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
@pytest.mark.parametrize("suffix", ["ndjson", "csv"])
@pytest.mark.slow_beyond(1)
def test_resume_completes_a_run_that_was_ended(files: Path, tmp_path: Path, end: signal.Signals, suffix: str) -> None:
    out = tmp_path / f"out.{suffix}"
    served: list[Fake] = []
    with fake_server(answering(40, served)) as fake:
        served.append(fake)
        process = subprocess.Popen(command(fake, files, out), stderr=subprocess.PIPE, text=True)
        eventually(lambda: len(fake.bodies) >= 9 and lines(out) >= 40 + (suffix == "csv"))  # five of nine are answered
        process.send_signal(end)
        _, err = process.communicate(timeout=HANG_SECONDS)
    if end == signal.SIGINT:
        assert process.returncode == 130
        assert err == "milkweed: 40 more answers are kept: the same command with --resume goes on\n"
    with open(out, "a") as file:
        file.write('{"image": "' if suffix == "ndjson" else f'{files}/040.png,1,7,"n')

    served.clear()
    with fake_server(answering(COUNT, served)) as fake:
        served.append(fake)
        ran = subprocess.run(
            command(fake, files, out, "--resume"), capture_output=True, text=True, timeout=HANG_SECONDS
        )
        asked = [image for head, body in zip(fake.heads, fake.bodies, strict=True) for image in images_of(head, body)]
    assert ran.returncode == 1
    *_, said = ran.stderr.splitlines()
    assert said == f"milkweed: error: 1 of {COUNT} images got no answer, the first: {files}/040.png: undecodable: torn"
    again = 1 if suffix == "csv" else 0  # whether a CSV's last image is whole cannot be told
    assert len(asked) == COUNT - 40 + again
    found = [image_and_label(line, suffix) for line in out.read_text().splitlines()[suffix == "csv" :]]
    assert found == [(f"{files}/{n:03d}.png", f"image {n}" if n != 40 else "") for n in range(COUNT)]


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def image_and_label(line: str, suffix: str) -> tuple[str, str]:
    if suffix == "csv":
        image, _, _, _, label, *_ = line.split(",")
        return image, label
    record = json.loads(line)
    return record["image"], record["predictions"][0]["label"] if "predictions" in record else ""


def test_a_server_that_goes_leaves_what_it_said(files: Path, tmp_path: Path) -> None:
    out, served = tmp_path / "out.ndjson", list[Fake]()
    with fake_server(answering(24, served, refusal(401, "unauthorized"))) as fake:
        served.append(fake)
        ran = subprocess.run(command(fake, files, out), capture_output=True, text=True, timeout=HANG_SECONDS)
        url = f"http://127.0.0.1:{fake.port}"
    assert (ran.returncode, ran.stdout) == (1, "")
    kept, error = ran.stderr.splitlines()
    assert kept == "milkweed: 24 more answers are kept: the same command with --resume goes on"
    assert error == f"milkweed: error: --url {url}: unauthorized: no"
    assert lines(out) == 24
    heads = [head.partition(b"\r\n\r\n")[0] for head in fake.heads]
    assert all(b"X-Priority: bulk" in head for head in heads)
