"""Arrays and JPEG 2000 through the whole service: type, multipart part without a name, limits, the setting."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ...support import server_parts

pytestmark = pytest.mark.anyio

ARRAY = {"content-type": "application/x-npy"}


def npy(values: "np.ndarray[Any, Any]") -> bytes:
    out = io.BytesIO()
    np.save(out, values)
    return out.getvalue()


async def test_multipart_array_needs_no_file_name(running: Any) -> None:
    array = npy(np.random.default_rng(0).integers(0, 256, (2, 9, 12, 3), np.uint8))
    body = b"--b\r\nContent-Disposition: form-data; name=x\r\nContent-Type: application/x-npy\r\n\r\n" + array
    async with running() as app:
        answer = await app.client.post(
            "/classify", content=body + b"\r\n--b--\r\n", headers={"content-type": "multipart/form-data; boundary=b"}
        )
        raw = await app.client.post("/classify", content=array, headers=ARRAY)
    assert answer.status_code == raw.status_code == 200
    assert answer.json()["results"] == raw.json()["results"]
    assert len(raw.json()["results"]) == 2


async def test_batch_may_exceed_the_limit_of_an_image_but_none_of_its_images_may(running: Any) -> None:
    limits = {"max_image_bytes": 2000, "max_body_bytes": 20_000}
    several = npy(np.zeros((10, 3, 8, 8), np.float32))  # 10 x 768 bytes
    one = npy(np.zeros((30, 30, 3), np.uint8))
    async with running(settings=limits) as app:
        assert (await app.client.post("/classify", content=several, headers=ARRAY)).status_code == 200
        server_parts.check_error(await app.client.post("/classify", content=several), 413, "too_large", "2000")
        failed = await app.client.post("/classify", content=one, headers=ARRAY)
        server_parts.check_error(failed, 413, "too_large", "2000")
        more = npy(np.zeros((30, 3, 8, 8), np.float32))
        server_parts.check_error(
            await app.client.post("/classify", content=more, headers=ARRAY), 413, "too_large", "20000"
        )


async def test_formats_are_a_setting(running: Any) -> None:
    out = io.BytesIO()
    Image.new("RGB", (20, 20), (200, 10, 30)).save(out, "JPEG2000")
    async with running() as app:
        refused = await app.client.post("/classify", content=out.getvalue())
        server_parts.check_error(
            refused, 415, "unsupported_format", "JPEG 2000", "one of JPEG, PNG, WEBP, NPY, BMP, TIFF"
        )
    async with running(settings={"formats": "jpeg2000,png"}) as app:
        assert (await app.client.post("/classify", content=out.getvalue())).status_code == 200
        array = await app.client.post("/classify", content=npy(np.zeros((2, 9, 9, 3), np.uint8)), headers=ARRAY)
        assert array.status_code == 415
        assert [each["error"]["code"] for each in array.json()["results"]] == ["unsupported_format"] * 2
        said = array.json()["results"][0]["error"]["message"]
        assert said == "image 0: NPY is not accepted: expected one of PNG, JPEG2000"
