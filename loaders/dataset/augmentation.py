"""Augments training images; what is more than moving and flipping is done by timm's transforms.

timm takes random numbers from Python's, numpy's and torch's generators. Each image gets a seed of its own, which they
are set to, so that its augmentation only depends on the run's seed, the epoch and its index; then they are restored.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from ...kernels.installation import install_command
from ..preprocess.normalise import Levels
from ..preprocess.spec import PreprocessSpec

CROPS = ("resized", "pad", "none")


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What is done to a training image, in the order of the fields.

    Args:
        crop: `resized` cuts a random box of at least `min_scale` of the area and resizes it; `pad` moves the image by
            up to an eighth of its side, with its reflection outside; `none` prepares it as for evaluation.
        min_scale: smallest area of `resized`'s box as a share of the image, above 0 and at most 1.
        flip: mirror half of the images left-right.
        randaugment: timm's spelling, such as `rand-m9-mstd0.5`; None is off.
        color_jitter: largest relative change of brightness, contrast and saturation; 0 is off.
        blur: probability of a Gaussian blur with a radius of up to 2 px, as in SimCLR (arXiv 2002.05709).
        erase: probability that a box is filled with noise (random erasing, arXiv 1708.04896).
    """

    crop: str = "resized"
    min_scale: float = 0.08
    flip: bool = True
    randaugment: str | None = None
    color_jitter: float = 0.0
    blur: float = 0.0
    erase: float = 0.0

    def __post_init__(self) -> None:
        if self.crop not in CROPS:
            raise ValueError(f"crop {self.crop!r} must be one of {', '.join(CROPS)}")
        if not 0 < self.min_scale <= 1:
            raise ValueError(f"min_scale {self.min_scale} must be above 0 and at most 1")
        for name in ("color_jitter", "blur", "erase"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise ValueError(f"{name} {value} must be 0 to 1")


class Augmenter:
    """Applies an `Augmentation` for a model of one `PreprocessSpec`.

    Raises:
        ValueError: a RandAugment that timm cannot read.
        ImportError: timm is needed and not there.
    """

    def __init__(self, augmentation: Augmentation, spec: PreprocessSpec) -> None:
        self.augmentation, self.size = augmentation, spec.size
        self._crop = _random_resized_crop(spec, augmentation) if augmentation.crop == "resized" else None
        self._colours = _colour_changes(augmentation, spec)
        self._erase = _erasing(augmentation)

    @property
    def whole_images(self) -> bool:
        """Whether `levels` wants whole images; otherwise it wants them prepared as for evaluation."""
        return self._crop is not None

    def levels(self, images: list[Levels], uniform: NDArray[np.float64], seeds: NDArray[np.uint64]) -> Levels:
        """Augment decoded images, all but the erasing.

        Args:
            images: RGB (H, W, 3); of the model's size unless `whole_images`.
            uniform: (N, 3) random numbers in 0..1, for the flip and for both moves of `pad`.
            seeds: (N,), for timm's random numbers.

        Returns:
            uint8 (N, size, size, 3).
        """
        if self._crop is not None:
            with _generators_restored():
                places = zip(images, uniform[:, 0], seeds, strict=True)
                return np.stack([self._cut(image, flip, int(seed)) for image, flip, seed in places])
        batch = np.stack(images)
        if self.augmentation.crop == "pad":
            batch = _moved(batch, uniform[:, 1:])
        if self.augmentation.flip:
            flipped = uniform[:, 0] < 0.5
            batch[flipped] = batch[flipped][:, :, ::-1]
        if self._colours is None:
            return batch
        with _generators_restored():
            return np.stack([self._recoloured(image, int(seed)) for image, seed in zip(batch, seeds, strict=True)])

    def erase(self, batch: Tensor, seeds: NDArray[np.uint64]) -> Tensor:
        """Erase boxes in normalised images (N, 3, size, size), in place."""
        if self._erase is not None:
            with _generators_restored():
                for image, seed in zip(batch, seeds, strict=True):
                    _seed_generators(int(seed) ^ 1)
                    image.copy_(self._erase(image))
        return batch

    def _cut(self, image: Levels, flip: float, seed: int) -> Levels:
        assert self._crop is not None
        _seed_generators(seed)
        done: Any = self._crop(Image.fromarray(image))
        if self.augmentation.flip and flip < 0.5:
            done = done.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.array(done if self._colours is None else self._colours(done))

    def _recoloured(self, image: Levels, seed: int) -> Levels:
        assert self._colours is not None
        _seed_generators(seed)
        return np.array(self._colours(Image.fromarray(image)))


def _moved(batch: Levels, uniform: NDArray[np.float64]) -> Levels:
    """Each image moved by a whole number of pixels, up to an eighth of the side either way."""
    size = batch.shape[1]
    most = min(max(1, size // 8), size - 1)
    if most == 0:
        return batch
    padded = np.pad(batch, ((0, 0), (most, most), (most, most), (0, 0)), mode="reflect")
    places = (uniform * (2 * most + 1)).astype(np.int64)
    out = np.empty_like(batch)
    for image, source, (top, left) in zip(out, padded, places, strict=True):
        image[:] = source[top : top + size, left : left + size]
    return out


def _random_resized_crop(spec: PreprocessSpec, augmentation: Augmentation) -> Callable[[Any], Any]:
    _timm()
    from timm.data.transforms import RandomResizedCropAndInterpolation

    made: Any = RandomResizedCropAndInterpolation  # untyped
    crop: Callable[[Any], Any] = made(spec.size, scale=(augmentation.min_scale, 1.0), interpolation=spec.interpolation)
    return crop


def _colour_changes(augmentation: Augmentation, spec: PreprocessSpec) -> Callable[[Any], Any] | None:
    changes: list[Callable[[Any], Any]] = []
    if augmentation.randaugment is not None:
        _timm()
        from timm.data.auto_augment import rand_augment_transform

        fill = tuple(min(255, max(0, round(255 * mean))) for mean in spec.mean)
        try:
            transform = rand_augment_transform(augmentation.randaugment, {"img_mean": fill})
        except (AssertionError, ValueError, KeyError) as error:
            raise ValueError(f"randaugment {augmentation.randaugment!r} is not as timm spells it: {error}") from None
        for change in transform.ops:
            if change.name.startswith("Posterize"):
                change.aug_fn = _posterized
        changes.append(transform)
    if augmentation.color_jitter > 0:
        changes.append(partial(_jittered, most=augmentation.color_jitter))
    if augmentation.blur > 0:
        changes.append(partial(_blurred, probability=augmentation.blur))
    if not changes:
        return None

    def apply(image: Any) -> Any:
        for change in changes:
            image = change(image)
        return image

    return apply


def _posterized(image: Image.Image, bits: int, **_: object) -> Image.Image:
    """The highest bits of each colour, one at least: timm asks for none at its strongest, which Pillow refuses."""
    return ImageOps.posterize(image, min(8, max(1, bits)))


def _jittered(image: Image.Image, most: float) -> Image.Image:
    """Brightness, contrast and saturation each changed by a factor of 1 +- most, in an order by chance."""
    changes = [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color]
    random.shuffle(changes)
    for change in changes:
        image = change(image).enhance(random.uniform(1 - most, 1 + most))
    return image


def _blurred(image: Image.Image, probability: float) -> Image.Image:
    blurs, radius = random.random() < probability, random.uniform(0.1, 2.0)
    return image.filter(ImageFilter.GaussianBlur(radius)) if blurs else image


def _erasing(augmentation: Augmentation) -> Callable[[Tensor], Tensor] | None:
    if augmentation.erase == 0:
        return None
    _timm()
    from timm.data.random_erasing import RandomErasing

    made: Any = RandomErasing  # untyped
    erase: Callable[[Tensor], Tensor] = made(augmentation.erase, mode="pixel", device="cpu")
    return erase


def _timm() -> None:
    try:
        import timm.data  # noqa: F401
    except ImportError as error:
        raise ImportError(f"this augmentation needs the package timm: {install_command('torch')} ({error})") from error


def _seed_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    # not torch.manual_seed, which seeds every device too and formats a traceback for those that have not begun
    torch.default_generator.manual_seed(seed >> 1)


@contextmanager
def _generators_restored() -> Iterator[None]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
