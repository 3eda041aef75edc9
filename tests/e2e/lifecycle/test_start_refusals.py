"""A server that cannot start says why in one line on stderr and ends with 1, or with 2 for a value that cannot be."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from milkweed.kernels.installation import install_command

from ...support.authority import OPENSSL, Authority, openssl


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Path) -> Path:
    """Files that are broken, and certificates where there is openssl."""
    folder = tmp_path_factory.mktemp("broken")
    shutil.copytree(tiny_bundle, folder / "bundle")
    weights = folder / "bundle" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    (folder / "keys.toml").write_text('[[key]]\nname = "a"\nsha256 = "mw_plain"\n')
    (folder / "hello").write_text("hello")
    if OPENSSL is not None:
        authority = Authority(folder, "authority")
        _, key = authority.issue("server")
        authority.issue("other")
        openssl("pkcs8", "-topk8", "-in", key, "-passout", "pass:secret", "-out", folder / "encrypted.key")
    return folder


IN_USE = "cannot listen on 127.0.0.1 port {taken}: Address already in use"
TLS = {"tls_cert": "{folder}/server.pem", "tls_key": "{folder}/server.key"}
CASES: dict[str, tuple[dict[str, Any], str, int]] = {
    "port": ({"port": "{taken}", "fresh": True}, IN_USE, 1),
    "metrics port": (
        {"metrics_port": "{taken}"},
        "metrics port {taken}: Address already in use (--metrics-port 0 turns it off)",
        1,
    ),
    "admin port": ({"admin_port": "{taken}"}, "port {taken}", 1),
    "gRPC port": ({"grpc_port": "{taken}"}, IN_USE.replace(" port", " gRPC port"), 1),
    "gRPC packages": (
        {"grpc_port": 9, "prelude": "import sys; sys.modules['grpc'] = None\n"},
        install_command("grpc"),
        1,
    ),
    "ONNX Runtime": (
        {"backend": "onnxruntime", "prelude": "import sys; sys.modules['onnxruntime'] = None\n"},
        f"backend onnxruntime: ONNX Runtime is not installed: {install_command('onnxruntime')}",
        1,
    ),
    "bundle": ({"bundles": {"broken": "{folder}/bundle"}}, "bundle {folder}/bundle: model.safetensors", 1),
    "API keys": ({"api_keys": "{folder}/keys.toml"}, "API keys {folder}/keys.toml: key 1 (a): sha256 must be 64", 1),
    "device": ({"device": "cuda:0,cuda:0"}, "device = 'cuda:0,cuda:0' names cuda:0 twice", 2),
    "missing device": ({"device": "cuda:8,cuda:9"}, "device cuda:8: this machine has", 1),
    "TLS key missing": ({**TLS, "tls_key": "{folder}/nowhere"}, "{folder}/nowhere", 1),
    "TLS key no PEM": ({**TLS, "tls_key": "{folder}/hello"}, "{folder}/hello", 1),
    "TLS key of another": ({**TLS, "tls_key": "{folder}/other.key"}, "{folder}/other.key", 1),
    "TLS key encrypted": ({**TLS, "tls_key": "{folder}/encrypted.key"}, "{folder}/encrypted.key", 1),
    "TLS authority no PEM": ({**TLS, "tls_client_ca": "{folder}/hello"}, "{folder}/hello", 1),
}


@pytest.mark.slow_beyond(6)
@pytest.mark.parametrize("case", CASES)
def test_what_cannot_start_says_why_in_one_line(serving: Any, server: Any, folder: Path, case: str) -> None:
    if case.startswith("TLS") and OPENSSL is None:
        pytest.skip("needs the openssl command")
    if case.startswith("gRPC"):
        pytest.importorskip("grpc")
    settings, words, code = CASES[case]

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(each) for name, each in value.items()}
        taken = server.url.rpartition(":")[2]
        return value.format(folder=folder, taken=taken) if isinstance(value, str) else value

    with serving(**filled(settings)) as refused:
        assert refused.exit() == code
        [line] = [line for line in refused.log if '"level": "info"' not in line]
    assert line.startswith("milkweed: error: ")
    assert filled(words) in line
    assert "mw_plain" not in line


def test_variables_without_effect_are_named_at_a_start_that_goes_on(serving: Any) -> None:
    given = {"MILKWEED_SERVICE_HOST": "10.0.0.11", "MILKWEED_TOPK": "3", "MILKWEED_API_KEY": "s3cret"}
    with serving(prelude=f"import os; os.environ.update({given})\n") as server:
        server.wait_ready()
        for name, words in (("TOPK", "mean top_k?"), ("API_KEY", "MILKWEED_API_KEYS"), ("SERVICE_HOST", "Kube")):
            assert words in server.wait_log(f"milkweed: warning: MILKWEED_{name}: ")
        assert "s3cret" not in "".join(server.log)
