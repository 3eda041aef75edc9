"""What `milkweed bench` refuses: each in one line, before anything is measured."""

from pathlib import Path

import pytest

from milkweed.cli import main


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("server --sections all", "--sections all: expected some of capacity, load, overload"),
        ("server --body xml", "--body xml: expected some of raw, multipart, json, npy"),
        ("server --arrivals bursty", "--arrivals bursty: expected some of poisson, fixed"),
        ("server --loads 0.5,x", "--loads 0.5,x: expected numbers above 0 with commas between"),
        ("server --set top_k", "--set top_k: expected NAME=VALUE"),
        ("server --url http://127.0.0.1:1 --arch x", "give one of BUNDLE, --url and --arch"),
        ("server --seconds 0.1", "must be at least 0.5"),
        ("server --malformed 1.5", "--malformed 1.5: expected a share, 0 to 1"),
        ("decode --sections batch", "--sections batch: expected some of one, batches, damage"),
        ("kernels --plot a.jpg", "--plot a.jpg: must end in .svg or .png"),
        ("kernels --batch-sizes 1,x", "--batch-sizes 1,x: expected numbers above 0 with commas between"),
        ("kernels --batch-sizes 1.5", "--batch-sizes 1.5: expected whole numbers from 1 on with commas between"),
        ("kernels --dtype int8", "--dtype int8: expected float32 or bfloat16"),
        ("kernels --nblocks 3", "--nblocks 3: expected one of 2, 4, 8"),
    ],
)
def test_wrong_usage_is_one_line(command: str, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *command.split()]) == 2
    printed, err = capfd.readouterr()
    assert printed == ""
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("server --url http://127.0.0.1:1", "--url http://127.0.0.1:1: no connection: refused"),
        ("http /no/such", "bundle /no/such: no such folder"),
        ("kernels --device cpu --out .", ".: cannot be written: it is a folder"),
        ("kernels --device cpu --out file/a.json", "file/a.json: cannot be written: file is no folder"),
        ("kernels --device cpu --plot file/a.svg", "file/a.json: cannot be written: file is no folder"),
    ],
)
def test_what_is_not_there_or_cannot_be_written_is_one_line(
    command: str, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milkweed.bench.kernels.run", lambda **_: pytest.fail("it was measured"))
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    assert main(["bench", *command.split()]) == 1
    assert capfd.readouterr() == ("", f"milkweed: error: {words}\n")
