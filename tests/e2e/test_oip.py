"""The Open Inference Protocol of a real process, by hand and by the clients that people have."""

import asyncio
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import numpy as np
import pytest

from milkweed.bench.ports import free_port

from ..support.authority import Authority, needs_openssl, trusting
from ..support.bodies import as_tensor
from ..support.server_parts import encoded
from ..support.waiting import HANG_SECONDS, eventually
from .connections.raw_client import IMAGE
from .connections.test_hostile_crowds import HELD
from .connections.test_tls import name_on

grpc_service_pb2: Any = pytest.importorskip("milkweed.server.oip.grpc_service_pb2")

CLIENTS = Path(__file__).with_name("oip_clients.py")


@pytest.fixture(scope="module")
def grpc() -> ModuleType:
    return pytest.importorskip("grpc")


@pytest.fixture(scope="module")
def both(serving: Any, grpc: ModuleType) -> Iterator[Any]:
    """A server that speaks the protocol both ways; `address` is the gRPC port's."""
    port = free_port()
    with serving(grpc_port=port) as server:
        server.wait_ready()
        server.address = f"127.0.0.1:{port}"
        yield server


MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"


def message(image: bytes) -> bytes:
    """A ModelInferRequest for the model `tiny`."""
    request = grpc_service_pb2.ModelInferRequest(model_name="tiny")
    request.inputs.add(name="image", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(len(image).to_bytes(4, "little") + image)
    return bytes(request.SerializeToString())


def test_rest_and_grpc_answer_as_classify_does(both: Any, grpc: ModuleType) -> None:
    classified = httpx.post(both.url + "/classify", content=IMAGE).json()["results"][0]["predictions"]
    outputs = httpx.post(both.url + "/v2/models/tiny/infer", json=as_tensor(IMAGE)).json()["outputs"]
    assert outputs[1]["data"] == [p["index"] for p in classified]
    assert outputs[2]["data"] == [p["score"] for p in classified]
    with grpc.insecure_channel(both.address) as channel:
        answer = channel.unary_unary(MODEL_INFER)(message(IMAGE), timeout=HANG_SECONDS)
    _, index, score = grpc_service_pb2.ModelInferResponse.FromString(answer).raw_output_contents
    assert index == np.array([p["index"] for p in classified], "<i8").tobytes()
    assert score == np.array([p["score"] for p in classified], "<f4").tobytes()


def test_refused_calls_write_nothing_to_the_log(both: Any, grpc: ModuleType) -> None:
    before = len(both.log)
    with grpc.insecure_channel(both.address) as channel:
        call = channel.unary_unary(MODEL_INFER)
        for sent, options in ((b"\xff", {}), (message(IMAGE), {"compression": grpc.Compression.Gzip})):
            with pytest.raises(grpc.RpcError):
                call(sent, timeout=HANG_SECONDS, **options)
    assert both.log[before:] == []


def repeated(call: Any, payload: bytes) -> None:
    for _ in range(1000):
        call(payload, timeout=HANG_SECONDS)


def test_sigterm_drains_calls_in_flight(serving: Any, grpc: ModuleType, tmp_path: Path) -> None:
    large, hold, taken = message(encoded(size=(2200, 2200))), tmp_path / "hold", tmp_path / "taken"  # below 16 MiB
    port = free_port()
    counted = HELD.replace("    while", f"    open({str(taken)!r}, 'a').write('x' * len(args[0]))\n    while")
    with serving(grpc_port=port, prelude=counted.format(path=str(hold))) as server:
        server.wait_ready()
        hold.touch()
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_send_message_length", -1)]) as channel:
            call = channel.unary_unary(MODEL_INFER)
            calls = [call.future(large, timeout=HANG_SECONDS) for _ in range(4)]
            depth = 'milkweed_queue_depth_images{model="tiny"}'
            eventually(lambda: taken.exists() and server.metric(depth) + len(taken.read_text()) == 4)
            server.terminate()
            hold.unlink()
            assert all(b"tiny" in answer.result() for answer in calls)
            # It may have answered all before it looked at the signal; until then it takes more.
            with pytest.raises(grpc.RpcError) as refused:
                repeated(call, message(IMAGE))
            assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        assert server.exit() == 0


@needs_openssl
def test_grpc_speaks_tls_where_http_does(serving: Any, grpc: ModuleType, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def install(name: str) -> None:
        for made, place in zip(authority.issue(name), (cert, key), strict=True):
            shutil.copy(made, place)

    install("first")
    mine = authority.issue("client")
    port = free_port()
    files = {"tls_cert": cert, "tls_key": key, "tls_client_ca": authority.cert}
    with serving(grpc_port=port, **files) as server:
        server.wait_ready()
        address = f"https://127.0.0.1:{port}"
        known = grpc.ssl_channel_credentials(authority.cert.read_bytes(), mine[1].read_bytes(), mine[0].read_bytes())
        unknown = grpc.ssl_channel_credentials(authority.cert.read_bytes())
        with grpc.secure_channel(f"127.0.0.1:{port}", known) as channel:
            call = channel.unary_unary(MODEL_INFER)
            assert b"tiny" in call(message(IMAGE), timeout=HANG_SECONDS)
        for refused in (
            grpc.secure_channel(f"127.0.0.1:{port}", unknown),
            grpc.insecure_channel(f"127.0.0.1:{port}"),
        ):
            with refused, pytest.raises(grpc.RpcError):
                refused.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=HANG_SECONDS)
        context = trusting(authority, mine)
        context.set_alpn_protocols(["h2"])
        assert name_on(address, context) == "first"
        install("second")
        assert name_on(address, context) == "second"
        cert.write_bytes(b"nonsense")
        assert name_on(address, context) == "second"


def test_many_at_once_over_both(both: Any, grpc: ModuleType) -> None:
    images = [encoded("JPEG", seed=seed, size=(64, 64)) for seed in range(5)]

    async def ask() -> list[bytes]:
        async with grpc.aio.insecure_channel(both.address) as channel:
            call = channel.unary_unary(MODEL_INFER)
            return await asyncio.gather(*(call(message(images[i % 5]), timeout=HANG_SECONDS) for i in range(100)))

    answers = asyncio.run(ask())
    assert all(answers[i] == answers[i % 5] for i in range(100))


@pytest.mark.parametrize("trial", ["triton-http", "triton-grpc", "kserve-rest", "kserve-grpc"])
def test_clients_of_triton_and_kserve_work_unchanged(both: Any, tmp_path: Path, trial: str) -> None:
    package = "tritonclient" if trial.startswith("triton") else "kserve"
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: run {CLIENTS.name} with a Python that has it")
    paths = []
    for seed in range(3):
        path = tmp_path / f"{seed}.jpg"
        path.write_bytes(encoded("JPEG", seed=seed, size=(64, 64)))
        paths.append(str(path))
    command = [sys.executable, str(CLIENTS), "--only", trial, both.url, both.address, "tiny", *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
