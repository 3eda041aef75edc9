"""The labels of a model as the Open Inference Protocol has them, made once: an answer may name every class."""

import struct
from collections.abc import Iterable
from typing import cast

import numpy as np
import numpy.typing as npt

_LENGTH = struct.Struct("<I")


def as_element(text: str) -> bytes:
    """A text as an element of BYTES: in UTF-8, behind its length in four bytes, little-endian."""
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


class LabelTexts:
    """Finds texts by their places, of which -1 is ""."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = np.array([*texts, ""], object)
        self._elements = np.array([as_element(text) for text in self._texts], object)

    def at(self, places: npt.NDArray[np.int32]) -> list[str]:
        """The texts at these places."""
        return cast(list[str], self._texts[places].tolist())

    def bytes_at(self, places: npt.NDArray[np.int32]) -> bytes:
        """The texts at these places as BYTES."""
        return b"".join(self._elements[places])
