"""Settings: where values come from, and what a bad one says."""

from pathlib import Path

import pytest

from milkweed.server.config.sources import SettingsError, load_settings


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
        ({}, {}, "topk = 3", ("milkweed.toml: topk = 3", "no such setting")),
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
