"""The ways from one JPEG to model input that `milkweed bench decode` compares: our loaders, and the usual ones."""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from io import BytesIO
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ...loaders import CpuLoader, Loader, PillowLoader, PreprocessSpec, geometry
from ...loaders.decode.cpu import rgb_pixels
from ...loaders.errors import LoaderError
from ...loaders.headers.info import ImageInfo
from ...loaders.preprocess.normalise import Normaliser
from ...loaders.preprocess.resize import resize_crop

SPEC = PreprocessSpec(orientation="ignore")  # timm turns nothing upright, so nobody does here
REFERENCE = "Pillow reference (ours)"
MISSING = (ImportError, RuntimeError, AttributeError, LoaderError)  # of a library that is not there, or not whole
MAX_BATCH = 32

Load = Callable[[bytes], torch.Tensor]
Made = TypeVar("Made")


def made(makers: Mapping[str, Callable[[], Made]]) -> tuple[dict[str, Made], dict[str, str]]:
    """What can be made here, and on one line why the others cannot."""
    working, skipped = {}, {}
    for name, make in makers.items():
        try:
            working[name] = make()
        except MISSING as error:
            skipped[name] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return working, skipped


def our_loaders(threads: int) -> tuple[dict[str, Loader], dict[str, str]]:
    """The loaders that can be made here, and why the others cannot."""
    return made(
        {
            "cpu": lambda: CpuLoader(SPEC, num_threads=threads),
            "dali exact": lambda: dali("exact", num_threads=threads),
            "dali fused": lambda: dali("fused", num_threads=threads),
        }
    )


def dali(resample: Any, num_threads: int = 1, device: Literal["cpu", "gpu"] = "cpu", **options: Any) -> Loader:
    """The loader of DALI, on the current GPU or on the CPU; raises one of MISSING where it is not installed."""
    from ...loaders.decode.dali import DaliLoader
    from ...loaders.decode.dali_graph import DaliOptions

    chosen = DaliOptions(resample=resample, **{"max_batch": MAX_BATCH, **options})
    index = torch.cuda.current_device() if device == "gpu" else 0
    return DaliLoader(SPEC, num_threads=num_threads, options=chosen, device=device, device_id=index)


class WholeLoader(CpuLoader):
    """Our loader, but JPEGs are decoded whole, by simplejpeg."""

    def decode(self, data: bytes, info: ImageInfo, orientation: int) -> tuple[NDArray[np.uint8], None]:
        return rgb_pixels(data, info), None


def methods() -> tuple[dict[str, Load], dict[str, str]]:
    """The ways whose libraries are here, and why the others are not."""
    return made(
        {
            "simplejpeg + torch (ours)": lambda: alone(CpuLoader(SPEC)),
            REFERENCE: lambda: alone(PillowLoader(SPEC)),
            "DALI on the CPU (ours)": lambda: alone(dali("exact")),
            "DALI on the CPU, one pass (ours)": lambda: alone(dali("fused")),
            "Pillow + torch": _pillow_torch,
            "timm create_transform": _timm,
            "torchvision decode_jpeg + v2": _torchvision,
            "nvImageCodec on the CPU + torch": _nvimgcodec,
            "OpenCV INTER_AREA (not equal)": _opencv,
        }
    )


def alone(loader: Loader) -> Load:
    """A loader that is given one image at a time."""

    def load(body: bytes) -> torch.Tensor:
        result = loader.load([body])
        if result.errors:
            raise result.errors[0]
        return torch.from_numpy(np.asarray(result.pixels)[0])

    return load


@cache
def _normaliser() -> Normaliser:
    return Normaliser(SPEC)


def _normalised(levels: torch.Tensor | np.ndarray) -> torch.Tensor:
    """uint8 (S, S, 3) as model input."""
    return torch.from_numpy(_normaliser().batch(np.asarray(levels)[None])[0])


def _ours(pixels: np.ndarray) -> torch.Tensor:
    """Decoded pixels (H, W, 3) as model input, by our resize."""
    target = geometry(SPEC, pixels.shape[1], pixels.shape[0])
    return _normalised(resize_crop(pixels, target, SPEC.interpolation))


def _pillow_torch() -> Load:
    return lambda body: _ours(np.array(Image.open(BytesIO(body)).convert("RGB")))


def _timm() -> Load:
    transform = import_module("timm.data").create_transform(
        SPEC.size, interpolation=SPEC.interpolation, crop_pct=SPEC.crop_pct, is_training=False
    )
    return lambda body: transform(Image.open(BytesIO(body)).convert("RGB"))


def _torchvision() -> Load:
    io, v2 = import_module("torchvision.io"), import_module("torchvision.transforms.v2.functional")

    def load(body: bytes) -> torch.Tensor:
        pixels = io.decode_jpeg(torch.frombuffer(bytearray(body), dtype=torch.uint8), mode=io.ImageReadMode.RGB)
        target = geometry(SPEC, pixels.shape[2], pixels.shape[1])
        size = [target.resize_height, target.resize_width]
        resized = v2.resize(pixels, size, v2.InterpolationMode.BICUBIC, antialias=True)
        crop = v2.crop(resized, target.top, target.left, target.size, target.size)
        return _normalised(crop.permute(1, 2, 0))

    return _tried(load)


def _nvimgcodec() -> Load:
    codec = import_module("nvidia.nvimgcodec")
    decoder = codec.Decoder(
        device_id=codec.NVIMGCODEC_DEVICE_CPU_ONLY,
        backends=[codec.Backend(codec.BackendKind.CPU_ONLY)],
        max_num_cpu_threads=1,
    )
    upright = codec.DecodeParams(apply_exif_orientation=False)  # colours are sRGB by default

    def load(body: bytes) -> torch.Tensor:
        (image,) = decoder.decode([codec.CodeStream(body)], params=upright)
        if image is None:
            raise ValueError("nvImageCodec answered None")
        return _ours(np.asarray(image.cpu()))

    return _tried(load)


def _opencv() -> Load:
    cv2 = import_module("cv2")
    cv2.setNumThreads(1)

    def load(body: bytes) -> torch.Tensor:
        pixels = cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        target = geometry(SPEC, pixels.shape[1], pixels.shape[0])
        size = (target.resize_width, target.resize_height)
        resized = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
        crop = resized[target.top : target.top + target.size, target.left : target.left + target.size]
        return _normalised(cv2.cvtColor(crop, cv2.COLOR_BGR2RGB))

    return load


def _tried(load: Load) -> Load:
    """A library that imports but cannot decode is found before the clock runs."""
    body = BytesIO()
    Image.new("RGB", (300, 300)).save(body, "JPEG")
    load(body.getvalue())
    return load
