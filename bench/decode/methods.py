"""The ways from one JPEG to model input that `bench/decode.py` compares: our loaders, and the usual ones."""

from collections.abc import Callable
from importlib import import_module
from io import BytesIO

import numpy as np
import torch
from PIL import Image

from ...loaders import CpuLoader, Loader, PillowLoader, PreprocessSpec, geometry
from ...loaders.dali_graph import Resample
from ...loaders.errors import LoaderError
from ...loaders.normalise import Normaliser
from ...loaders.resize import resize_crop

SPEC = PreprocessSpec(orientation="ignore")
"""Of the table: timm turns nothing upright, so nobody does."""

REFERENCE = "Pillow reference (ours)"
MISSING = (ImportError, RuntimeError, AttributeError, LoaderError)
"""What a library that is not there, or not whole, ends in."""

Load = Callable[[bytes], torch.Tensor]


def available() -> tuple[dict[str, Load], dict[str, str]]:
    """The methods that import here, and why the others do not."""
    makers: dict[str, Callable[[], Load]] = {
        "simplejpeg + torch (ours)": lambda: _loader(CpuLoader(SPEC)),
        REFERENCE: lambda: _loader(PillowLoader(SPEC)),
        "DALI on the CPU (ours)": lambda: _loader(_dali("exact")),
        "DALI on the CPU, one pass (ours)": lambda: _loader(_dali("fused")),
        "Pillow + torch": _pillow_torch,
        "timm create_transform": timm_transform,
        "torchvision decode_jpeg + v2": _torchvision,
        "nvImageCodec on the CPU + torch": _nvimgcodec,
        "OpenCV INTER_AREA (not equal)": _opencv,
    }
    methods, skipped = {}, {}
    for name, make in makers.items():
        try:
            methods[name] = make()
        except MISSING as error:
            skipped[name] = why(error)
    return methods, skipped


def why(error: Exception) -> str:
    """The reason a row is skipped, on one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]


def _dali(resample: Resample) -> Loader:
    from ...loaders.dali_loader import DaliLoader

    return DaliLoader(SPEC, resample=resample, max_batch=1)


def _loader(loader: Loader) -> Load:
    def load(body: bytes) -> torch.Tensor:
        result = loader.load([body])
        if result.errors:
            raise result.errors[0]
        return result.pixels[0]

    return load


def _finish() -> Callable[[torch.Tensor], torch.Tensor]:
    """Our normalise, for methods that end in uint8 (3, S, S)."""
    normaliser = Normaliser(SPEC)

    def finish(levels: torch.Tensor) -> torch.Tensor:
        out = torch.empty(levels.shape)
        normaliser.write(levels, out)
        return out

    return finish


def _pillow_torch() -> Load:
    finish = _finish()

    def load(body: bytes) -> torch.Tensor:
        pixels = np.array(Image.open(BytesIO(body)).convert("RGB"))
        target = geometry(SPEC, pixels.shape[1], pixels.shape[0])
        return finish(resize_crop(pixels, target, SPEC.interpolation).permute(2, 0, 1))

    return load


def timm_transform() -> Load:
    """timm's eval transform, the reference of the reference."""
    transform = import_module("timm.data").create_transform(
        SPEC.size, interpolation=SPEC.interpolation, crop_pct=SPEC.crop_pct, is_training=False
    )

    def load(body: bytes) -> torch.Tensor:
        pixels: torch.Tensor = transform(Image.open(BytesIO(body)).convert("RGB"))
        return pixels

    return load


def _torchvision() -> Load:
    io, v2 = import_module("torchvision.io"), import_module("torchvision.transforms.v2.functional")
    finish = _finish()

    def load(body: bytes) -> torch.Tensor:
        pixels = io.decode_jpeg(torch.frombuffer(bytearray(body), dtype=torch.uint8), mode=io.ImageReadMode.RGB)
        target = geometry(SPEC, pixels.shape[2], pixels.shape[1])
        size = [target.resize_height, target.resize_width]
        resized = v2.resize(pixels, size, v2.InterpolationMode.BICUBIC, antialias=True)
        return finish(v2.crop(resized, target.top, target.left, target.size, target.size))

    load(_probe())
    return load


def _nvimgcodec() -> Load:
    codec = import_module("nvidia.nvimgcodec")
    decoder = codec.Decoder(
        device_id=codec.NVIMGCODEC_DEVICE_CPU_ONLY,
        backends=[codec.Backend(codec.BackendKind.CPU_ONLY)],
        max_num_cpu_threads=1,
    )
    upright = codec.DecodeParams(apply_exif_orientation=False)  # colours are sRGB by default
    finish = _finish()

    def load(body: bytes) -> torch.Tensor:
        (image,) = decoder.decode([codec.CodeStream(body)], params=upright)
        if image is None:
            raise ValueError("nvImageCodec answered None")
        pixels = np.asarray(image.cpu())
        target = geometry(SPEC, pixels.shape[1], pixels.shape[0])
        return finish(resize_crop(pixels, target, SPEC.interpolation).permute(2, 0, 1))

    load(_probe())
    return load


def _opencv() -> Load:
    cv2 = import_module("cv2")
    cv2.setNumThreads(1)
    finish = _finish()

    def load(body: bytes) -> torch.Tensor:
        pixels = cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        target = geometry(SPEC, pixels.shape[1], pixels.shape[0])
        size = (target.resize_width, target.resize_height)
        resized = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
        crop = resized[target.top : target.top + target.size, target.left : target.left + target.size]
        return finish(torch.from_numpy(cv2.cvtColor(crop, cv2.COLOR_BGR2RGB)).permute(2, 0, 1))

    return load


def _probe() -> bytes:
    """A small JPEG: a library that imports but cannot decode is found before the clock runs."""
    body = BytesIO()
    Image.new("RGB", (300, 300)).save(body, "JPEG")
    return body.getvalue()
