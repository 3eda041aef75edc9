"""What of the peers needs no peer: the same model, requests, environments, processes and the table."""

import base64
import io
import json
import runpy
import socket
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from milkweed.bench.bodies import arrays, made_jpegs, pictures
from milkweed.bench.load.plan import Plan, Shot
from milkweed.bench.load.samples import Samples, summary
from milkweed.bench.peers.__main__ import COLUMNS, cells, export, main
from milkweed.bench.peers.catalogue import PEERS, SERVERS, STAMP, Peer, running_peer
from milkweed.bench.peers.servers.tiny_vit import RAW_BYTES, classify, decode, load
from milkweed.bench.ports import free_port
from milkweed.bench.process import slow_device
from milkweed.bench.server.bundles import tiny_bundle
from milkweed.inference.open import open_model
from milkweed.inference.options import InferenceOptions
from milkweed.inference.results import TopClasses
from milkweed.inference.torch_forward import TorchForward
from milkweed.loaders import PreprocessSpec, create_loader
from milkweed.models import load_bundle

from ..support.waiting import eventually, has_ended

PEER = """
import http.server, subprocess, sys
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", deaf])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404); self.end_headers()
    def log_message(self, *given): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_peers_compute_what_we_do(tmp_path: Path) -> None:
    bundle, weights = export(tmp_path)
    threads = torch.get_num_threads()
    theirs = load(weights)
    torch.set_num_threads(threads)
    ours, config = load_bundle(bundle)
    images = pictures(32)
    batch = torch.stack([decode(image.tobytes()) for image in images])
    loaded = create_loader("cpu", PreprocessSpec.from_dict(config.preprocess)).load(arrays(images))
    torch.testing.assert_close(batch, torch.as_tensor(loaded.pixels), atol=1e-5, rtol=0)
    with torch.inference_mode():
        torch.testing.assert_close(theirs(batch), ours.eval()(batch), atol=1e-5, rtol=1e-5)
        classes = [found[0] for found in classify(theirs, batch)]
    assert classes == ours(batch).argmax(-1).tolist()
    assert len(set(classes)) > 1  # a swapped answer can be told


def test_a_body_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=rf"expected {RAW_BYTES} bytes, got 5"):
        decode(b"12345")


def image_and_tensor(peer: Peer, shot: Shot) -> tuple[bytes, dict[str, Any]]:
    """The image of a request, whatever form has it, and what its head says of the tensor, if any."""
    if peer.body == "base64 in JSON":
        return base64.b64decode(json.loads(shot.body)["images"][0]), {}
    if peer.body != "binary tensor":
        return shot.body, {}
    head = int(dict(shot.headers)["Inference-Header-Content-Length"])
    return shot.body[head:], json.loads(shot.body[:head])["inputs"][0]


@pytest.mark.parametrize("peer", PEERS.values(), ids=PEERS)
def test_requests_hold_the_pixels_or_the_photograph(peer: Peer) -> None:
    images, photo = pictures(32, 2), made_jpegs(1)[0]
    *good, bad = peer.shots(images)
    assert ([shot.good for shot in good], bad.good) == ([True, True], False)
    assert len(bad.body) < len(good[1].body)
    for shot, image, said, before in (
        (good[1], images[1].tobytes(), {"shape": [1, 32, 32, 3], "datatype": "UINT8"}, b""),
        (peer.photo_shots([photo])[0], photo, {"shape": [1, 1], "datatype": "BYTES"}, len(photo).to_bytes(4, "little")),
    ):
        found, tensor = image_and_tensor(peer, shot)
        assert image in found
        if tensor:
            assert said.items() <= tensor.items()
            assert found == before + image


@pytest.mark.parametrize("changed", [{}, {"crop_pct": 1.5, "interpolation": "bilinear"}, {"orientation": "ignore"}])
def test_a_photograph_is_prepared_as_by_our_reference_loader(changed: dict[str, Any]) -> None:
    graph_model = pytest.importorskip("milkweed.bench.peers.servers.graph_model", exc_type=ImportError)
    spec = PreprocessSpec.from_dict({**PreprocessSpec(size=96).to_dict(), **changed})
    turned, out = Image.Exif(), io.BytesIO()
    turned[0x0112] = 6
    photo = made_jpegs(1)[0]
    Image.open(io.BytesIO(photo)).save(out, "JPEG", exif=turned)
    for body in (*made_jpegs(2), out.getvalue()):
        expected = np.asarray(create_loader("pillow", spec).load([body]).pixels)[0]
        np.testing.assert_allclose(graph_model.pixels(body, **spec.to_dict()), expected, rtol=0, atol=1e-6)


def test_a_bundle_is_served_by_its_graph(
    graph_alone: Path, colour_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    monkeypatch.syspath_prepend(SERVERS)
    monkeypatch.setenv("PEER_MODEL", str(graph_alone))
    served = runpy.run_path(str(SERVERS / "served_model.py"))
    assert (served["BODY"], served["SHAPE"]) == (bytes, (1,))
    bodies = [path.read_bytes() for path in sorted(colour_photos.rglob("*.png"))[::6]]
    found = served["classify"](served["load"](graph_alone), [served["decode"](body) for body in bodies])
    pipeline = open_model(graph_alone, InferenceOptions(device="cpu", backend="openvino")).pipeline
    ours = pipeline.classify(bodies, top_k=1)
    pipeline.close()
    assert [(index,) for index, _ in found] == [each.index for each in ours if isinstance(each, TopClasses)]
    monkeypatch.setenv("PEER_MODEL", str(tmp_path / "tiny.pt"))
    assert runpy.run_path(str(SERVERS / "served_model.py"))["SHAPE"] == (32, 32, 3)


def test_an_environment_that_is_complete_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / STAMP).write_text("numpy==2\nnvidia-pytriton==0.7.0\n")
    PEERS["triton"].install(tmp_path)
    assert PEERS["triton-bounded"].version(tmp_path) == "0.7.0"
    assert PEERS["ray"].version(tmp_path) is None


def test_a_port_is_free_and_those_that_follow_it() -> None:
    def all_are_free() -> bool:
        port = free_port(following=2)
        try:
            with ExitStack() as held:
                for number in range(3):
                    held.enter_context(socket.create_server(("127.0.0.1", port + number)))
        except OSError:
            return False
        return True

    assert any(all_are_free() for _ in range(5))  # not each time: tests in other processes take ports too


def fake_peer(code: Path) -> Peer:
    usual = PEERS["ray"]
    return replace(usual, name="fake", ready="/health", environment={}, command=f"{sys.executable} {code} {{port}}")


def test_a_peer_ends_with_all_it_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milkweed.bench.peers.catalogue.END_SECONDS", 0.5)
    (tmp_path / "peer.py").write_text(PEER)
    with running_peer(fake_peer(tmp_path / "peer.py"), tmp_path, tmp_path / "w.pt") as (pid, url):
        assert url.startswith("http://127.0.0.1:")
        (child,) = psutil.Process(pid).children()
        assert child.is_running()
    eventually(lambda: has_ended(child.pid))


def test_a_peer_that_does_not_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "peer.py").write_text("import sys; sys.exit('no licence')")
    with (
        pytest.raises(RuntimeError, match="fake did not start: no licence"),
        running_peer(fake_peer(tmp_path / "peer.py"), tmp_path, tmp_path / "w.pt"),
    ):
        pass


def row(section: str, statuses: dict[str, int]) -> dict[str, Any]:
    seen = Samples()
    for outcome, count in statuses.items():
        for _ in range(count):
            seen.add(0.0, 0.01, 0.0, outcome, True)
    plan = Plan((("h", 1),), "/", (), seconds=1.0)
    return {"section": section, "cpu_ms_per_request": 0.3, "pss_mb": 400.0, **summary(plan, seen)}


def test_a_server_has_a_line() -> None:
    rows = [row("capacity", {"200": 90}), row("capacity", {"200": 100}), row("load", {"200": 9})]
    rows += [row("malformed", {"200": 9}), row("malformed", {"200": 5, "500": 5})]
    rows += [row("slow", {"200": 40}), row("overload", {"200": 20})]
    found = dict(zip(map(str.strip, COLUMNS), cells({"name": "litserve", "rows": rows}), strict=True))
    assert (found["server"], found["CPU ms/req"], found["req/s"], found["PSS MB"]) == ("litserve", "0.30", "100", "400")
    assert (found["open p50"], found["neighbours"], found["goodput at 2x"]) == ("10.0", "50.0%", "50% of 40")


def test_peers_that_are_not_there_are_rows_that_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "peers.json"
    assert main(["run", "--peers", "litserve", "ray", "--venvs", str(tmp_path), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "litserve: skipped: not installed: python -m milkweed.bench.peers setup litserve" in printed
    assert "ray: skipped" in printed
    document = json.loads(out.read_text())
    assert [server["skipped"] is not None for server in document["servers"]] == [True, True]


def test_our_slow_device_is_slow_with_a_recorded_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sleep must not be recorded away: then nobody is short of the device."""
    monkeypatch.setattr(TorchForward, "run", TorchForward.run)
    exec(slow_device(0.2), {})
    pipeline = open_model(tiny_bundle(tmp_path / "tiny"), InferenceOptions(device="cpu")).pipeline
    forward = pipeline.forward_stage
    assert forward.traced is not None
    assert forward.traced.reason is None
    assert forward.warm_seconds[1] >= 0.2
    pipeline.close()
