"""Golden images: two generated images and the model's answers when it was saved, which every load compares again.

Hashes show that a file is what was written. Golden images show that everything from the file to the answer, packing,
fusing and this machine's kernels included, still computes the same model.
"""

from collections.abc import Mapping, Sequence
from math import isfinite, log, pi
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import BundleError, first_line, quoted

if TYPE_CHECKING:
    from torch import nn

IMAGES, CLASSES = 2, 5

# Largest difference of the logarithm of a probability to the recorded one. bfloat16 keeps 8 bits of each product.
# int8: a quantised graph rounds an activation to one of 256 levels. Where two runtimes differ in the last digit, some
# land on the next level, so that their answers differ by about as much as quantisation itself changes them.
TOLERANCES = {"float32": 0.02, "float16": 0.1, "bfloat16": 0.3, "int8": 0.7}
DIVERGENCES = {"bfloat16": 0.02, "int8": 0.3}
"""Largest KL divergence, nats, of a program's or graph's answers from the model's, on any CPU; half of it where it is
made.

DeiT-Tiny's are 0.00003 in bfloat16, 0.02 in int8, and 0.09 where weights have 7 bits. Single classes' probabilities say
less: there one of 2 % differs by a factor of 3.5.
"""
SMALLEST = 1e-5
"""Smaller probabilities are not compared: rounding alone changes their logarithms."""


def golden_images(size: int) -> NDArray[np.float32]:
    """Smooth waves over the whole range of normalised pixels: float32 (IMAGES, 3, size, size), always the same."""
    steps = np.arange(size) / size
    waves = []
    for image in range(IMAGES):
        for channel in range(3):
            across = np.sin(2 * pi * (1 + image + channel) * steps + channel)
            down = np.cos(2 * pi * (2 + channel - image) * steps + image)
            waves.append(down[:, None] + across[None, :])
    return np.stack(waves).reshape(IMAGES, 3, size, size).astype(np.float32)


def golden_record(model: "nn.Module", size: int) -> dict[str, Any]:
    """The model's answers to the golden images, as plain data: the best classes of each and their probabilities.

    Raises:
        BundleError: it cannot compute them, or an answer holds numbers that are not finite.
    """
    import torch

    training = model.training
    parameter = next(model.parameters())
    try:
        with torch.inference_mode():
            logits = model.eval()(torch.from_numpy(golden_images(size)).to(parameter.device, parameter.dtype))
    except Exception as error:  # classes that others wrote: what does not fit an image fails in any way
        raise BundleError(f"the model cannot compute an image of {size} px: {first_line(error)}") from error
    finally:
        model.train(training)
    return recorded(logits.float().cpu().numpy())


def recorded(logits: ArrayLike) -> dict[str, Any]:
    """The record of logits (IMAGES, num_classes) that answer the golden images.

    Raises:
        BundleError: they hold numbers that are not finite.
    """
    probabilities = softmax(np.asarray(logits, np.float32))
    if not np.isfinite(probabilities).all():
        raise BundleError("the model answers its golden images with numbers that are not finite")
    best = np.argsort(-probabilities, 1, kind="stable")[:, :CLASSES]
    values = np.take_along_axis(probabilities, best, 1)
    return {
        "index": best.tolist(),
        "probability": [[float(f"{value:.7g}") for value in row] for row in values.tolist()],
    }


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """The probabilities of rows of logits; a row with a number that is not finite gives none that is."""
    with np.errstate(invalid="ignore"):
        powers: NDArray[np.float32] = np.exp(logits - logits.max(-1, keepdims=True))
        powers /= powers.sum(-1, keepdims=True)
    return powers


def sigmoid(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """The probability of each class by itself; a logit that is not finite gives none that is."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.float32(1) / (np.float32(1) + np.exp(-logits)) + (logits - logits)


def check_record(record: Mapping[str, Any], num_classes: int) -> None:
    """Raise BundleError for a record that cannot be a model's answers."""
    index: Any = record.get("index")
    probability: Any = record.get("probability")
    if set(record) != {"index", "probability"} or not (_rows(index) and _rows(probability)):
        raise BundleError(f"golden {quoted(dict(record), 40)} must have index and probability, {IMAGES} rows each")
    for indices, values in zip(index, probability, strict=True):
        right = len(indices) == len(values) and all(type(i) is int and 0 <= i < num_classes for i in indices)
        if not right or not all(isinstance(p, float | int) and isfinite(p) and 0 <= p <= 1 for p in values):
            raise BundleError(f"golden: a row is not classes below {num_classes} and as many probabilities")


def check_golden(record: Mapping[str, Any], probabilities: ArrayLike, dtype: str) -> None:
    """Compare answers to the golden images with the record.

    Args:
        probabilities: float32 (IMAGES, num_classes), as served.
        dtype: number type of the forward, which decides the tolerance; int8 for a quantised graph, whatever else it
            computes in. In those of DIVERGENCES single classes may differ by twice as much where the answers together
            are near: in bfloat16 a class of 2.9 % of EfficientNet-Lite0 had 1.8 %, at a KL of 0.009.

    Raises:
        BundleError: names the image, the class and both numbers.
    """
    tolerance, answers = TOLERANCES[dtype], np.asarray(probabilities)
    for image, (indices, values) in enumerate(zip(record["index"], record["probability"], strict=True)):
        for index, recorded in zip(indices, values, strict=True):
            answer = float(answers[image, index])
            if recorded < SMALLEST:
                continue
            near = dtype in DIVERGENCES and _divergence(indices, values, answers[image]) <= DIVERGENCES[dtype]
            if not (answer > 0 and abs(log(answer / recorded)) <= (1 + near) * tolerance):
                raise BundleError(
                    f"golden image {image}, class {index}: the model answers {answer:.4g}, "
                    f"its bundle says {recorded:.4g}"
                )


def check_divergence(record: Mapping[str, Any], probabilities: ArrayLike, precision: str, share: float = 1.0) -> None:
    """Compare a program's answers to the golden images with the model's: the recorded classes, and all others together.

    Args:
        precision: of the program; one of DIVERGENCES.
        share: of the limit.

    Raises:
        BundleError: names the image, the divergence and its limit.
    """
    answers, limit = np.asarray(probabilities, np.float64), share * DIVERGENCES[precision]
    for image, (indices, values) in enumerate(zip(record["index"], record["probability"], strict=True)):
        kl = _divergence(indices, values, answers[image])
        if not kl <= limit:
            raise BundleError(
                f"golden image {image}: the program's answers differ from the model's by {kl:.3g} nats (KL), "
                f"at most {limit:g} in {precision} may be"
            )


def _divergence(indices: Sequence[int], recorded: Sequence[float], answers: NDArray[Any]) -> float:
    """KL divergence, nats, of an image's answers from the record: of its classes, and of all others together."""
    of_model, of_program = ([*few, 1 - sum(few)] for few in (recorded, answers[list(indices)].tolist()))
    return sum(p * log(p / max(q, 1e-30)) for p, q in zip(of_model, of_program, strict=True) if p > 0)


def _rows(value: Any) -> bool:
    return isinstance(value, list) and len(value) == IMAGES and all(isinstance(row, list) and row for row in value)
