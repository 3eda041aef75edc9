"""Tests that every wrong input gets one clear line on stderr, nothing on stdout, and the right exit code."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from milkweed.cli import bundle_args as bundles
from milkweed.cli import main
from milkweed.cli.errors import CommandError, explain, one_line
from milkweed.models import BundleError, CheckpointError, load_bundle

from ..support.command import Milkweed, Refused


@pytest.fixture
def copy(bundle: Path, tmp_path: Path) -> Path:
    """A bundle that may be spoiled."""
    return Path(shutil.copytree(bundle, tmp_path / "copy"))


@pytest.mark.parametrize("command", ["inspect", "evaluate"])
def test_truncated_weights_are_refused(refused: Refused, copy: Path, tmp_path: Path, command: str) -> None:
    data = tmp_path / "data" / "n00"
    data.mkdir(parents=True)
    (data / "a.png").write_bytes(b"x")
    with open(copy / "model.safetensors", "r+b") as file:
        file.truncate(20_000)
    message = refused(command, copy, *([data.parent] if command == "evaluate" else []))
    assert message.startswith(f"bundle {copy}: model.safetensors: truncated: ")
    assert "20000" in message or str(20_000 - 8) in message or "holds" in message


def test_a_newer_format_is_refused(refused: Refused, copy: Path) -> None:
    document = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**document, "format": 2}))
    want = f"bundle {copy}: config.json: format 2 is newer than the 1 this milkweed reads: update milkweed"
    assert refused("inspect", copy) == want
    assert refused("serve", f"name={copy}") == want
    assert refused("classify", "--model", copy, "a.png") == want


def test_a_missing_bundle_is_named(refused: Refused, tmp_path: Path) -> None:
    want = f"bundle {tmp_path / 'no'}: no such folder"
    for arguments in (("inspect",), ("serve",), ("densify", "x"), ("evaluate", tmp_path)):
        assert refused(arguments[0], tmp_path / "no", *arguments[1:]) == want


def test_import_refuses_a_checkpoint_of_another_architecture(
    milkweed: Milkweed, refused: Refused, tmp_path: Path
) -> None:
    path = tmp_path / "weights.pth"
    torch.save({"state_dict": {"blocks.0.attn.qkv.weight": torch.zeros(3, 3)}}, path)
    arguments = ("import", path, tmp_path / "out", "--arch", "vitae_basic_tiny")
    said = refused(*arguments)
    assert "you asked for vitae_basic_tiny; 264 keys expected, " in said
    assert "first missing layers.0.RC.PCM.0.weight; first unexpected 'blocks.0.attn.qkv.weight'" in said
    assert said.endswith("(--debug says more)")
    ran = milkweed(*arguments, "--debug")
    assert ran.code == 1
    assert "Traceback (most recent call last):" in ran.err
    assert " missing: layers.0.RC.PCM.0.weight, " in ran.err
    assert ran.err.splitlines()[-1].startswith("milkweed: error: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("servve",), "no such command 'servve'"),
        (("inspect", "--nope"), "no such option: --nope; see milkweed inspect --help"),
        (("inspect", "a", "b"), "got unexpected extra argument"),
        (("classify",), "missing argument 'IMAGE...', or --from-file; see milkweed classify --help"),
        (("import", "a"), "missing argument 'BUNDLE'; see milkweed import --help"),
        (("import", "a", "b", "--arch-args", "{"), "--arch-args {: not JSON: "),
        (
            ("import", "a", "b", "--preprocess", "no.json"),
            "--preprocess no.json: no JSON object, and as a file: No such",
        ),
        (("import", "a", "b", "--arch", "resnt50"), "--arch: unknown architecture 'resnt50': "),
        (("compress", "a", "b", "--images", "c", "--speedup", "x"), "invalid value for '--speedup': 'x': must be a nu"),
        (("compress", "a", "b"), "missing option '--images'; see milkweed compress --help"),
        (("evaluate", "a", "b", "--limit", "-1"), "invalid value for '--limit': -1: must be at least 1; see "),
        (("bench",), "missing command; see milkweed bench --help"),
        (("bench", "model", "--seconds", "nan"), "invalid value for '--seconds': nan: must be at least 0; see "),
        (("models", "xyz*"), "PATTERN 'xyz*': fits none of "),
        (("serve", "--port", "99999"), "--port = '99999': input should be less than or equal to 65535 "),
        (("serve", "--dtype", "int8"), "--dtype = 'int8': input should be 'float32', 'bfloat16', 'float16' or 'auto' "),
        (("serve", "--port", "1", "--metrics-port", "1"), "port and metrics_port are both 1"),
        (("serve", "--config", "/no/such.toml"), "config file /no/such.toml: No such file or directory"),
        (("serve", "a/.b"), "argument 'a/.b': the name '.b' must be 1 to 64 letters, digits"),
        (("serve", "x=a", "x=b"), "argument 'x=b': a is called 'x' too; give another as NAME=BUNDLE"),
        (("classify", "a.png", "--url", "ftp://x"), "--url ftp://x: must be http://HOST[:PORT] or https://..."),
        (
            ("classify", "a.png", "--url", "http://x", "--device", "cpu"),
            "--url has a server classify: --device does not go with it",
        ),
    ],
)
def test_wrong_usage_exits_with_2(refused: Refused, arguments: tuple[str, ...], message: str) -> None:
    assert refused(*arguments, code=2).startswith(message)


@pytest.mark.parametrize("rest", [(), ("http", "--out", "x.json"), ("server",)])
def test_an_installation_without_benchmarks_says_where_they_are(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, rest: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "milkweed.bench.commands.app", None)
    said = "the benchmarks are in a checkout of milkweed only: `make install-bench` there"
    assert refused("bench", *rest) == said


def test_a_wrong_variable_is_named(refused: Refused, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILKWEED_MICRO_BATCH", "many")
    assert refused("classify", "--model", bundle, "a.png", code=2).startswith("MILKWEED_MICRO_BATCH = 'many': ")


def test_a_missing_device_is_named(refused: Refused, bundle: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    assert refused("classify", "--model", bundle, "a.png", "--device", "cuda") == (
        "device cuda: this machine has 0 CUDA devices"
    )


def test_a_bundle_is_replaced_only_by_force(refused: Refused, bundle: Path, dense_bundle: Path, copy: Path) -> None:
    want = f"bundle {copy}: exists already; --force replaces it"
    assert refused("compress", dense_bundle, copy, "--images", "photos") == want
    assert refused("densify", bundle, copy) == want
    assert refused("convert", bundle, copy, "--storage", "int8") == want
    assert refused("import", "weights.pth", copy, "--arch", "deit_tiny_patch16_224") == want
    assert load_bundle(copy)[1].version == load_bundle(bundle)[1].version


def test_what_is_no_bundle_is_never_replaced(refused: Refused, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("precious")
    said = refused("densify", bundle, tmp_path, "--force")
    assert said == f"bundle {tmp_path}: exists and is not a bundle: not overwritten"
    assert (tmp_path / "notes.txt").read_text() == "precious"


def test_a_missing_demo_model_is_named(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "files", lambda package: tmp_path)
    want = f"no bundle was given and the demo model is not installed: {tmp_path / 'demo'} has no config.json"
    assert refused("serve") == refused("inspect") == refused("classify", "a.png") == want


def test_demo_is_the_demo_model_where_nothing_here_has_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert bundles.bundle_path("demo") == bundles.demo_bundle()
    assert bundles.named_bundles(["demo", "x=demo"]) == {"demo": bundles.demo_bundle(), "x": bundles.demo_bundle()}
    assert list(bundles.named_bundles([])) == ["demo", "demo-monarch"]
    assert bundles.named_bundles([])["demo-monarch"] == bundles.bundle_path("demo-monarch")
    assert bundles.bundle_path("./demo") == Path("demo")
    (tmp_path / "demo").mkdir()
    assert bundles.bundle_path("demo") == Path("demo")


def test_evaluate_and_inspect_take_demo(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused("evaluate", "demo", "nowhere") == "DATA nowhere: no such folder"
    assert main(["inspect", "demo"]) == 0


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, ""),
        (
            IndexError("out of range"),
            1,
            "milkweed: error: internal error, IndexError: out of range (--debug shows the traceback)\n",
        ),
    ],
)
def test_an_interrupt_is_quiet_and_an_internal_error_one_line(
    milkweed: Milkweed, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    monkeypatch.setattr("milkweed.models.list_models", Mock(side_effect=error))
    ran = milkweed("models")
    assert (ran.code, ran.out, ran.err) == (code, "", said)


def test_an_interrupt_before_the_command_runs_is_quiet() -> None:
    code = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'milkweed.cli.app': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from milkweed.cli import main\n"
        "sys.exit(main(['models']))"
    )
    ran = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


def test_debug_may_stand_anywhere(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--debug", "inspect", "/no"], ["inspect", "--debug", "/no"], ["inspect", "/no", "--debug"]):
        assert main(arguments) == 1
        err = capfd.readouterr().err
        assert err.startswith("Traceback (most recent call last):")
        assert err.endswith("milkweed: error: bundle /no: no such folder\n")


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (CommandError("two\nlines", 2), "two lines", 2),
        (FileNotFoundError(2, "No such file", "x.json"), "x.json: No such file", 1),
        (BundleError("bundle x: bad"), "bundle x: bad", 1),
        (
            FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/']"),
            "No usable temporary directory found in ['/tmp', '/']: PyTorch needs a writable one, as /tmp, or the one "
            "that TMPDIR names",
            1,
        ),
        (CheckpointError("bad", ("more",)), "bad (--debug says more)", 1),
        (ImportError("needs timm"), "needs timm", 1),
        (KeyError("k"), "internal error, KeyError: 'k' (--debug shows the traceback)", 1),
        (ValueError(), "internal error, ValueError (--debug shows the traceback)", 1),
    ],
)
def test_explain_makes_one_line_and_an_exit_code(error: Exception, line: str, code: int) -> None:
    assert explain(error) == (line, code)


def test_one_line_cannot_move_the_cursor() -> None:
    assert one_line("a\r\nb\x1b[2Jc\u202e ü") == "a b\\x1b[2Jc\\u202e ü"
