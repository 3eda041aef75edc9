"""Settings: frozen, described, and devices that can be."""

import pytest

from milkweed.loaders.headers.info import SANDBOXED
from milkweed.server.config.settings import Settings, image_limits
from milkweed.server.config.sources import SettingsError, load_settings


def test_settings_are_frozen_and_described() -> None:
    settings = Settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1
    assert all(field.description for field in Settings.model_fields.values())


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:7", "cuda:all", "cuda:0,cuda:1", "cpu,cpu,cpu"])
def test_valid_devices_are_accepted(device: str) -> None:
    assert load_settings({"device": device}).device == device


@pytest.mark.parametrize(
    ("device", "words"),
    [
        *(
            (device, "--device")
            for device in ("cpu,,", ",cpu", "cuda,cuda", "auto,cpu", "cuda:all,cpu", "tpu", " cpu", "")
        ),
        ("cpu,cuda:9", "mixes CPU and GPUs"),
        ("cuda:0,cuda:1,cuda:0", "names cuda:0 twice"),
        ("cuda:1,cuda:01", "names cuda:1 twice"),
    ],
)
def test_invalid_devices_are_refused_in_one_line(device: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        load_settings({"device": device})
    assert "\n" not in str(caught.value)
    assert repr(device) in str(caught.value)


@pytest.mark.parametrize("formats", ["jpeg", "png,jpeg2000", "jpeg,png,webp,npy,bmp,tiff,ppm,gif,avif,jpeg2000"])
def test_valid_formats_become_image_limits(formats: str) -> None:
    limits = image_limits(load_settings({"formats": formats}))
    assert sorted(limits.formats) == sorted(formats.upper().split(","))


@pytest.mark.parametrize("formats", ["", "jpg", "jpeg,", ",png", "jpeg, png", "JPEG", "all", "jpeg;png"])
def test_invalid_formats_are_refused_in_one_line_with_the_list(formats: str) -> None:
    with pytest.raises(SettingsError, match="--formats") as caught:
        load_settings({"formats": formats})
    assert "\n" not in str(caught.value)
    assert repr(formats) in str(caught.value)
    assert "jpeg, png, webp, npy, bmp, tiff, ppm, gif, avif, jpeg2000" in str(caught.value)


def test_only_formats_that_need_no_sandbox_are_accepted_by_default() -> None:
    assert Settings().formats == "jpeg,png,webp,npy"
    assert image_limits(Settings()).formats == ("JPEG", "PNG", "WEBP", "NPY")
    assert not SANDBOXED.keys() & set(image_limits(Settings()).formats)


@pytest.mark.parametrize(
    ("text", "count"), [("64MiB", 64 * 2**20), ("64 MB", 64_000_000), ("1.5GiB", 3 * 2**29), ("2000", 2000)]
)
def test_bytes_may_have_a_unit(text: str, count: int) -> None:
    assert load_settings({"max_body_bytes": text, "max_held_bytes": "4GiB"}).max_body_bytes == count


@pytest.mark.parametrize("text", ["12.5", "-5MB", "1e9", "64 potatoes", "MB", "", "2TiB"])
def test_invalid_bytes_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(SettingsError, match="--max-body-bytes") as caught:
        load_settings({"max_body_bytes": text})
    assert "\n" not in str(caught.value)
