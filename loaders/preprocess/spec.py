"""How a model's input is prepared (`PreprocessSpec`), and where it lies in an image (`geometry`)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Interpolation = Literal["bicubic", "bilinear"]
Orientation = Literal["apply", "ignore"]
CropMode = Literal["center", "center_down", "squash", "squash_down"]
JpegScaling = Literal["exact", "fast"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class PreprocessSpec:
    """timm's eval transform as data: resize the short side to floor(size / crop_pct), crop, normalise.

    Args:
        size: side of the square the model sees, px.
        crop_pct: size over the resized short side; above 1 the crop is padded with black, as in timm.
        mean, std: per channel, of values in 0..1.
        crop_mode: "center" keeps the shape of the picture and crops its centre; "squash" resizes it to a square first,
            whatever its shape. Both round as timm does, with "_down" behind them as transformers does.
        orientation: "apply" turns photographs upright by their EXIF tag; "ignore" is what timm does.
        jpeg_scaling: "fast" has large JPEGs decoded at 1/2, 1/4 or 1/8 (`jpeg_scale`): other bits, in half the time;
            "exact" is what timm does.
    """

    size: int = 224
    crop_pct: float = 0.875
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    orientation: Orientation = "apply"
    crop_mode: CropMode = "center"
    jpeg_scaling: JpegScaling = "exact"

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or not 1 <= self.size <= 4096:
            raise ValueError(f"size is {self.size!r}: expected an integer in 1..4096 px")
        if not 0.1 <= self.crop_pct <= 4.0:
            raise ValueError(f"crop_pct is {self.crop_pct!r}: expected a number in 0.1..4")
        if self.interpolation not in ("bicubic", "bilinear"):
            raise ValueError(f"interpolation is {self.interpolation!r}: expected bicubic or bilinear")
        if self.orientation not in ("apply", "ignore"):
            raise ValueError(f"orientation is {self.orientation!r}: expected apply or ignore")
        if self.crop_mode not in get_args(CropMode):
            raise ValueError(f"crop_mode is {self.crop_mode!r}: expected {', '.join(get_args(CropMode))}")
        if self.jpeg_scaling not in get_args(JpegScaling):
            raise ValueError(f"jpeg_scaling is {self.jpeg_scaling!r}: expected exact or fast")
        for name in ("mean", "std"):
            values = tuple(float(value) for value in getattr(self, name))
            if len(values) != 3 or not all(math.isfinite(value) for value in values):
                raise ValueError(f"{name} is {getattr(self, name)!r}: expected three finite numbers")
            object.__setattr__(self, name, values)
        if min(self.std) <= 0:
            raise ValueError(f"std is {self.std!r}: expected numbers above 0")

    @property
    def resize_short(self) -> int:
        """Length of the resized short side, px (timm's floor, not a rounding)."""
        return math.floor(self.size / self.crop_pct)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "PreprocessSpec":
        """Make a spec from the `preprocess` object of a bundle; unknown names are refused."""
        unknown = set(values) - set(cls.__dataclass_fields__)
        if unknown:
            known = ", ".join(cls.__dataclass_fields__)
            raise ValueError(f"unknown preprocess key {sorted(unknown)[0]!r}: expected {known}")
        kwargs = dict(values)
        for name in ("mean", "std"):
            if name in kwargs:
                kwargs[name] = _triple(name, kwargs[name])
        return cls(**kwargs)

    def to_dict(self) -> dict[str, Any]:
        """The spec as plain JSON data; `from_dict` is its inverse."""
        return {**asdict(self), "mean": list(self.mean), "std": list(self.std)}


@dataclass(frozen=True)
class Geometry:
    """The crop: size px square at (left, top) of the image resized to resize_width x resize_height.

    A negative left or top means so much black padding on that side. The resize has two passes with 8-bit levels between
    them; `columns_first` says that the one along columns goes first.
    """

    resize_width: int
    resize_height: int
    left: int
    top: int
    size: int
    columns_first: bool = False


def geometry(spec: PreprocessSpec, width: int, height: int) -> Geometry:
    """Compute the integer geometry of torchvision's Resize(int) + CenterCrop for an upright width x height image."""
    if width < 1 or height < 1:
        raise ValueError(f"image is {width}x{height} px: expected at least 1x1")
    short = spec.resize_short
    if spec.crop_mode.startswith("squash"):
        resized = short, short
    elif width <= height:
        resized = short, int(short * height / width)  # truncates, as torchvision does
    else:
        resized = int(short * width / height), short
    left, top = (_offset(length, spec.size, spec.crop_mode.endswith("_down")) for length in resized)
    # Pillow's rule from version 13 on, whichever is installed: pictures more than twice as high as wide that shrink.
    columns_first = height - resized[1] > max(0, 2 * (width - resized[0]))
    return Geometry(resized[0], resized[1], left, top, spec.size, columns_first)


def jpeg_scale(spec: PreprocessSpec, width: int, height: int) -> int:
    """Return how many times smaller (1, 2, 4 or 8) a JPEG, upright of width x height px, is decoded.

    With `spec.jpeg_scaling` "fast" either side stays at least twice as long as the side that it is resized to.
    """
    if spec.jpeg_scaling == "exact":
        return 1
    target = geometry(spec, width, height)
    spare = min(width / target.resize_width, height / target.resize_height) / 2
    return next((scale for scale in (8, 4, 2) if scale <= spare), 1)


def _offset(length: int, size: int, down: bool) -> int:
    """Return the start of the centred crop along one axis, rounded down or as torchvision does: half to even."""
    if size > length:
        return -((size - length) // 2)
    return (length - size) // 2 if down else round((length - size) / 2.0)


def _triple(name: str, value: Any) -> tuple[float, ...]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(value)
    raise ValueError(f"{name} is {value!r}: expected three numbers")
