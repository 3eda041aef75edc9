"""EmbeddingFormat: how an answer writes embeddings."""

from base64 import b64encode
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Encoding = Literal["float", "base64"]
ENCODINGS: tuple[Encoding, ...] = ("float", "base64")


class EmbeddingFormat(NamedTuple):
    """How an answer writes embeddings.

    Args:
        normalize: scaled to length 1, so that products of two are their cosine.
        encoding: numbers, or base64 text of their bytes (float32, little-endian).
    """

    normalize: bool = False
    encoding: Encoding = "float"

    def values(self, embedding: bytes) -> NDArray[np.float32]:
        """The values (width,) of an embedding, as `TopClasses` has its bytes."""
        values = np.frombuffer(embedding, np.float32)
        length = np.linalg.norm(values) if self.normalize else 0
        return values / length if length > 0 else values

    def json(self, embedding: bytes) -> bytes:
        """The same as JSON; numbers are the shortest that are the same float32."""
        values = self.values(embedding)
        if self.encoding == "base64":
            return b'"%b"' % b64encode(values.astype("<f4").tobytes())
        return ("[" + ", ".join(map(str, values)) + "]").encode()
