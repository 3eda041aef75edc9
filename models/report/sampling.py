"""How far chance alone may move a percentage that was counted on a sample of images."""

from math import sqrt

from .document import Measured


def sampling_error(percent: float, images: int) -> float | None:
    """One standard deviation, in points, of a share counted on `images` images (binomial); None without images."""
    if images < 1:
        return None
    # A share of 0 or 100 would give 0, which no finite sample can promise: half an image is taken off.
    share = min(max(percent / 100, 0.5 / images), 1 - 0.5 / images)
    return 100 * sqrt(share * (1 - share) / images)


def accuracy_change(before: Measured | None, after: Measured | None) -> tuple[float, float] | None:
    """Top-1 after less before, in points, and one standard deviation of that difference.

    Both are measured on the same images, so only images on which one model is right and the other wrong move
    the difference, and on those the two answers differ: with the share a of equal answers known, the variance of
    one image is at most (1 - a) - difference^2. Without it the two are taken as independent, which is too much.
    `after.agreement` must be with the model of `before`.

    Returns:
        None where either top-1 is missing or was measured on another number of images.
    """
    if before is None or after is None or before.top1 is None or after.top1 is None:
        return None
    if before.images != after.images or after.images < 1:
        return None
    change, images = after.top1 - before.top1, after.images
    if after.agreement is None:
        first, second = sampling_error(before.top1, images), sampling_error(after.top1, images)
        assert first is not None
        assert second is not None
        return change, sqrt(first**2 + second**2)
    differing = max(1 - after.agreement / 100, abs(change) / 100)
    variance = max(differing - (change / 100) ** 2, 1 / images)
    return change, 100 * sqrt(variance / images)
