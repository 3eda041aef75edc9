"""Settings: where values come from, and what a bad one says."""

from pathlib import Path

import pytest

from milkweed.server.config.settings import Settings
from milkweed.server.config.sources import (
    SettingsError,
    environment_warnings,
    load_settings,
    origins,
    variable_of,
)


def test_flags_beat_environment_beats_file_beats_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "milkweed.toml"
    file.write_text('port = 1001\nmax_queue_images = 300\ndrain_seconds = 7\nhost = "::1"\n')
    monkeypatch.setenv("MILKWEED_PORT", "1002")
    monkeypatch.setenv("MILKWEED_MAX_QUEUE_IMAGES", "301")
    settings = load_settings({"port": "1003", "drain_seconds": None}, file)
    assert (settings.port, settings.max_queue_images) == (1003, 301)
    assert (settings.drain_seconds, settings.host) == (7, "::1")
    assert settings.top_k == 5


@pytest.mark.parametrize(
    ("flags", "environment", "toml", "words"),
    [
        ({"port": 70000}, {}, "", ("--port = 70000", "65535")),
        ({"max_batch_size": -1}, {}, "", ("--max-batch-size = -1", "0")),
        ({}, {"MILKWEED_PORT": "http"}, "", ("MILKWEED_PORT = 'http'", "integer")),
        ({}, {"MILKWEED_DEVICE": "tpu"}, "", ("MILKWEED_DEVICE = 'tpu'", "cuda")),
        ({}, {}, "top_k = 0", ("milkweed.toml: top_k = 0", "1")),
        ({}, {}, "topk = 3", ("milkweed.toml: topk = 3", "no such setting; did you mean top_k?")),
        ({"max_images_per_request": 2000}, {}, "", ("max_images_per_request = 2000", "max_queue_images = 1024")),
        ({"port": 9, "metrics_port": 9}, {}, "", ("port and metrics_port are both 9",)),
        ({}, {}, "port = ", ("milkweed.toml is not TOML",)),
    ],
)
def test_a_bad_value_is_refused_in_one_line_with_source_value_and_limit(
    flags: dict[str, object],
    environment: dict[str, str],
    toml: str,
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "milkweed.toml"
    file.write_text(toml)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, file)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_missing_file_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"gone\.toml: No such file"):
        load_settings({}, tmp_path / "gone.toml")


# Of Services named milkweed, milkweed-metrics, milkweed-admin, as Kubernetes documents it.
SERVICES = {
    f"MILKWEED{middle}_{name}": value
    for middle in ("", "_METRICS", "_ADMIN", "_GRPC")
    for name, value in {
        "SERVICE_HOST": "10.0.0.11",
        "SERVICE_PORT": "8000",
        "SERVICE_PORT_HTTP": "8000",
        "PORT": "tcp://10.0.0.11:8000",
        "PORT_8000_TCP": "tcp://[2001:db8::1]:8000",
        "PORT_8000_TCP_PROTO": "tcp",
        "PORT_8000_TCP_PORT": "8000",
        "PORT_8000_TCP_ADDR": "10.0.0.11",
        "PORT_53_UDP": "udp://10.0.0.11:53",
    }.items()
}


def test_variables_of_a_kubernetes_service_are_named_and_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SERVICES.items():
        monkeypatch.setenv(name, value)
    assert load_settings() == Settings()
    assert set(origins().values()) == {"default"}
    (line,) = environment_warnings(load_settings())
    assert {"Kubernetes", "enableServiceLinks:"} <= set(line.replace(",", "").split())
    assert all(name in line for name in SERVICES)
    assert "10.0.0.11" not in line
    monkeypatch.setenv("MILKWEED_PORT", "9000")  # the pod's own value goes before that of the Service
    assert load_settings().port == 9000


@pytest.mark.parametrize("name", Settings.model_fields)
def test_no_setting_is_taken_from_a_service(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable_of(name), "tcp://10.0.0.11:8000")
    assert load_settings() == Settings()
    assert variable_of(name) in environment_warnings(None)[0]


def test_variables_without_effect_are_named_without_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MILKWEED_TOPK", "MILKWEED_XYZZY", "MILKWEED_API_KEY", "MILKWEED_MAX_CPU_ISA"):
        monkeypatch.setenv(name, "s3cret")
    lines = environment_warnings(Settings())
    assert [line.partition(":")[0] for line in lines] == ["MILKWEED_TOPK", "MILKWEED_XYZZY", "MILKWEED_API_KEY"]
    assert lines[0].endswith("did you mean top_k?")
    assert lines[1].endswith("it has no effect")
    assert "MILKWEED_API_KEYS" in lines[2]
    assert "s3cret" not in "".join(lines)
    assert len(environment_warnings(Settings(api_keys="keys.toml"))) == 2  # this server asks for keys
