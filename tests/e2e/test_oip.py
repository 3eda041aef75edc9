"""The Open Inference Protocol of a real process, by hand and by the clients that people have."""

import importlib.util
import io
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ..support.ports import free_port
from .connections.test_tls import OPENSSL, Authority, name_on, trusting

CLIENTS = Path(__file__).with_name("oip_clients.py")


def jpeg(seed: int = 0, side: int = 64) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG")
    return out.getvalue()


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


def message(image: bytes) -> bytes:
    """A ModelInferRequest for the model `tiny`, by hand: fields 1, 5 and 7, each a length and bytes."""

    def field(number: int, value: bytes) -> bytes:
        length, digits = len(value), []
        while length > 127:
            digits.append(length & 127 | 128)
            length >>= 7
        return bytes([number << 3 | 2, *digits, length]) + value

    tensor = field(1, b"image") + field(2, b"BYTES") + field(3, b"\1")
    return field(1, b"tiny") + field(5, tensor) + field(7, struct.pack("<I", len(image)) + image)


def test_refused_calls_write_nothing_to_the_log(both: Any, grpc: ModuleType) -> None:
    before = len(both.log)
    with grpc.insecure_channel(both.address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for options in ({"compression": grpc.Compression.Gzip}, {}):
            with pytest.raises(grpc.RpcError):
                call(b"\xff" if not options else message(jpeg()), timeout=30, **options)
    assert both.log[before:] == []


def repeated(call: Any, payload: bytes) -> None:
    for _ in range(1000):
        call(payload, timeout=10)


def test_sigterm_drains_calls_in_flight(serving: Any, grpc: ModuleType) -> None:
    out = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (2200, 2200, 3), dtype=np.uint8)  # below gRPC's limit of 16 MiB
    Image.fromarray(noise).save(out, "PNG", compress_level=1)
    slow = message(out.getvalue())
    port = free_port()
    with serving(grpc_port=port) as server:
        server.wait_ready()
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_send_message_length", -1)]) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            calls = [call.future(slow, timeout=60) for _ in range(4)]
            while server.metric("milkweed_http_held_body_bytes") < 4 * len(slow) * 0.9:
                assert not any(each.done() for each in calls)
            server.terminate()
            assert all(b"tiny" in answer.result() for answer in calls)
            # It may have answered all before it looked at the signal; until then it takes more.
            with pytest.raises(grpc.RpcError) as refused:
                repeated(call, message(jpeg()))
            assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        assert server.exit() == 0


@pytest.mark.skipif(OPENSSL is None, reason="needs the openssl command")
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
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            assert b"tiny" in call(message(jpeg()), timeout=30)
        for refused in (
            grpc.secure_channel(f"127.0.0.1:{port}", unknown),
            grpc.insecure_channel(f"127.0.0.1:{port}"),
        ):
            with refused, pytest.raises(grpc.RpcError):
                refused.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=10)
        context = trusting(authority, mine)
        context.set_alpn_protocols(["h2"])
        assert name_on(address, context) == "first"
        install("second")
        assert name_on(address, context) == "second"
        cert.write_bytes(b"nonsense")
        assert name_on(address, context) == "second"


def test_grpc_port_in_use_is_one_line_and_exit_code_1(serving: Any, grpc: ModuleType) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving(grpc_port=port) as server:
            assert server.exit() == 1
            assert server.log == [f"milkweed: error: cannot listen on 127.0.0.1 port {port}: Address already in use\n"]


def test_without_the_packages_the_start_names_the_extra(serving: Any) -> None:
    hide = "import sys; sys.modules['grpc'] = None; "
    with serving(grpc_port=free_port(), prelude=hide) as server:
        assert server.exit() == 1
        [line] = server.log
    assert "pip install 'milkweed[grpc]'" in line


@pytest.mark.parametrize("trial", ["triton-http", "triton-grpc", "kserve-rest", "kserve-grpc"])
def test_clients_of_triton_and_kserve_work_unchanged(both: Any, tmp_path: Path, trial: str) -> None:
    package = "tritonclient" if trial.startswith("triton") else "kserve"
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: run {CLIENTS.name} with a Python that has it")
    paths = []
    for seed in range(3):
        path = tmp_path / f"{seed}.jpg"
        path.write_bytes(jpeg(seed))
        paths.append(str(path))
    command = [sys.executable, str(CLIENTS), "--only", trial, both.url, both.address, "tiny", *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
