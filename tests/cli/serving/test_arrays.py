"""Tests `milkweed classify` of numpy arrays: one image, or several along a batch axis."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from ...support.command import Milkweed


def test_classify_takes_arrays_apart(milkweed: Milkweed, bundle: Path, images: list[bytes], tmp_path: Path) -> None:
    pixels = [np.asarray(Image.open(io.BytesIO(image)).convert("RGB").resize((40, 30))) for image in images[:3]]
    for place, picture in enumerate(pixels):
        Image.fromarray(picture).save(tmp_path / f"{place}.png")
    np.save(tmp_path / "all.npy", np.stack(pixels))
    np.save(tmp_path / "one.npy", pixels[1])
    np.save(tmp_path / "other.npy", pixels[1].astype("f8"))
    ran = milkweed("classify", "--model", bundle, *(tmp_path / f"{place}.png" for place in range(3)), "--json").ok()
    expected = ran.document["results"]
    files = [tmp_path / name for name in ("all.npy", "other.npy", "one.npy")]
    ran = milkweed("classify", "--model", bundle, *files, "--json")
    assert ran.code == 1
    results = ran.document["results"]
    assert [result.pop("image") for result in results] == [
        *(f"{files[0]}[{i}]" for i in range(3)),
        *map(str, files[1:]),
    ]
    assert [result["predictions"] for result in (*results[:3], results[4])] == [
        expected[place]["predictions"] for place in (0, 1, 2, 1)
    ]
    assert results[3]["error"]["code"] == "unsupported_format"
