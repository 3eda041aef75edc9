"""Arrays and JPEG 2000 through the whole service: type, multipart part without a name, limits, the setting."""

import io

import numpy as np
from PIL import Image

from ...support.bodies import npy
from ...support.server_parts import Start, check_error

ARRAY = {"content-type": "application/x-npy"}


async def test_batch_may_exceed_the_limit_of_an_image_but_none_of_its_images_may(running: Start) -> None:
    limits = {"max_image_bytes": 2000, "max_body_bytes": 20_000}
    several = npy(np.zeros((10, 3, 8, 8), np.float32))  # 10 x 768 bytes
    one = npy(np.zeros((30, 30, 3), np.uint8))
    async with running(settings=limits) as app:
        assert (await app.classify(several, headers=ARRAY)).status_code == 200
        check_error(await app.classify(several), 413, "too_large", "2000")
        failed = await app.classify(one, headers=ARRAY)
        check_error(failed, 413, "too_large", "2000")
        more = npy(np.zeros((30, 3, 8, 8), np.float32))
        check_error(await app.classify(more, headers=ARRAY), 413, "too_large", "20000")


async def test_formats_are_a_setting(running: Start) -> None:
    out = io.BytesIO()
    Image.new("RGB", (20, 20), (200, 10, 30)).save(out, "JPEG2000")
    async with running() as app:
        refused = await app.classify(out.getvalue())
        check_error(refused, 415, "unsupported_format", "JPEG 2000", "one of JPEG, PNG, WEBP, NPY, BMP, TIFF")
    async with running(settings={"formats": "jpeg2000,png"}) as app:
        assert (await app.classify(out.getvalue())).status_code == 200
        array = await app.classify(npy(np.zeros((2, 9, 9, 3), np.uint8)), headers=ARRAY)
        assert array.status_code == 415
        assert [each["error"]["code"] for each in array.json()["results"]] == ["unsupported_format"] * 2
        said = array.json()["results"][0]["error"]["message"]
        assert said == "image 0: NPY is not accepted: expected one of PNG, JPEG2000"
