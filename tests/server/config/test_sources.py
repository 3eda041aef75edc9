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


def test_variables_of_a_kubernetes_service_that_are_no_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {name: value for name, value in SERVICES.items() if not name.endswith("_PORT") or "SERVICE" in name}
    for name, value in others.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MILKWEED_XYZZY_PORT", "tcp://10.0.0.11:8000")
    assert load_settings() == Settings()
    assert set(origins().values()) == {"default"}
    (line,) = environment_warnings(load_settings())
    assert {"Kubernetes", "enableServiceLinks:"} <= set(line.replace(",", "").split())
    assert all(name in line for name in (*others, "MILKWEED_XYZZY_PORT"))
    assert "10.0.0.11" not in line


def test_every_port_that_a_kubernetes_service_sets_refuses_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SERVICES.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    ports = [line.partition(" = ")[0] for line in caught.value.lines]
    assert ports == ["MILKWEED_PORT", "MILKWEED_METRICS_PORT", "MILKWEED_ADMIN_PORT", "MILKWEED_GRPC_PORT"]
    for port in ports:  # the pod's own values go before those of the Service
        monkeypatch.setenv(port, "0" if "ADMIN" in port or "GRPC" in port else str(9000 + len(port)))
    assert load_settings().port == 9013


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_setting_that_a_service_sets_names_kubernetes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable_of(name), "tcp://10.0.0.11:8000")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    line = str(caught.value)
    assert line.startswith(f"{variable_of(name)} = 'tcp://10.0.0.11:8000': Kubernetes ")
    assert "enableServiceLinks: false" in line
    assert "\n" not in line
    assert load_settings({name: Settings().model_dump()[name]}) == Settings()  # a flag goes before it
    assert load_settings(serving=False) == Settings()


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
