"""The setting that names shadows: every spelling, every mistake in one line."""

from pathlib import Path

import pytest

from milkweed.server.config.shadows import parse_shadows
from milkweed.server.config.sources import SettingsError, load_settings


def test_shadows_read_the_same_from_every_source_and_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {"small": ("big", 0.05), "tiny": ("big", 1.0)}
    file = tmp_path / "milkweed.toml"
    file.write_text('[shadow]\nsmall = "big:0.05"\ntiny = "big:1"\n')
    assert parse_shadows(load_settings({}, file).shadow) == expected
    for text in ('{"small": "big:0.05", "tiny": "big:1"}', "small=big:0.05, tiny=big:1"):
        assert parse_shadows(load_settings({"shadow": text}).shadow) == expected
        monkeypatch.setenv("MILKWEED_SHADOW", text)
        assert parse_shadows(load_settings().shadow) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("small=small:0.1", "small is a shadow of itself"),
        ("small=big:0.1,tiny=small:0.1", "tiny is a shadow of small, which is a shadow itself"),
        ("small=tiny:0.1,tiny=small:0.1", "small is a shadow of tiny, which is a shadow itself"),
        *((f"small=big:{share}", f"a shadow of 'big:{share}'") for share in ("1.1", "-0.1", "nan", "inf", "1_0", "x")),
        ("small=big", "small is a shadow of 'big': expected MODEL:SHARE with a share 0..1"),
        ("small=:0.1", "small is a shadow of ':0.1'"),
        ('{"small": 3}', "small is a shadow of 3"),
        ("small", "'small' is not key=value"),
        ("small=big:0.1,small=other:0.1", "small is given twice"),
    ],
)
def test_an_invalid_shadow_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"shadow": text})
    assert str(caught.value).startswith("--shadow = ")
    assert words in str(caught.value)
    assert len(caught.value.lines) == 1
