"""Makes what a request to a server consists of: the address, the query, the headers, the body."""

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict
from urllib.parse import urlsplit, urlunsplit

KEY_VARIABLE = "MILKWEED_API_KEY"
"""The environment variable that the API key is read from."""

Priority = Literal["interactive", "bulk"]

MOST_TIMEOUT_MS = 300_000
"""The longest timeout that a server may be told of; it refuses a longer one (`max_timeout_ms`)."""


class ClassifyOptions(TypedDict, total=False):
    """The options of a call; `AsyncClient.classify` explains them."""

    model: str | None
    top_k: int | None
    threshold: float | None
    timeout: float | None
    priority: Priority | None
    embedding: bool
    head: str | None


@dataclass(frozen=True, slots=True)
class CallParams:
    """How images are to be classified; None leaves a parameter to the server."""

    model: str | None
    top_k: int | None
    priority: Priority | None
    timeout_seconds: float
    threshold: float | None = None
    embedding: bool = False
    head: str | None = None

    @classmethod
    def of(cls, options: ClassifyOptions, timeout_seconds: float) -> "CallParams":
        """Check the options of a call.

        Args:
            timeout_seconds: where they name none.

        Raises:
            TypeError, ValueError: there is no such option, or a value that cannot be.
        """
        asked: dict[str, Any] = {"model": None, "top_k": None, "priority": None, **options}
        timeout = asked.pop("timeout", None)
        return cls(timeout_seconds=timeout_seconds if timeout is None else timeout, **asked)

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold is {self.threshold}: expected 0 to 1")
        if not self.timeout_seconds > 0:
            raise ValueError(f"timeout is {self.timeout_seconds}: expected more than 0 seconds")

    @property
    def query(self) -> dict[str, str]:
        """The parameters that go into the query of the URL."""
        parameters = {"model": self.model, "top_k": self.top_k, "threshold": self.threshold, "head": self.head}
        parameters |= {"embedding": "base64"} if self.embedding else {}
        return {name: str(value) for name, value in parameters.items() if value is not None}

    @property
    def headers(self) -> dict[str, str]:
        """The parameters that go as headers."""
        return {} if self.priority is None else {"X-Priority": self.priority}


def base_url(url: str) -> str:
    """Return the address of a server, whether it was given with `/classify` or without.

    Raises:
        ValueError: not an http address, or one with a query, which would be lost.
    """
    try:
        parts = urlsplit(url)
        query = parts.query or parts.fragment
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known, query = False, ""
    if not known:
        raise ValueError(f"{url}: must be http://HOST[:PORT] or https://...")
    if query:
        raise ValueError(f"{url}: must end before {query!r}, which would be lost")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/").removesuffix("/classify"), "", ""))


def key_headers(api_key: str | None) -> dict[str, str]:
    """Return the header that carries the API key; none where there is no key.

    Raises:
        ValueError: no header may hold this key; the key itself is not in the message.
    """
    key = os.environ.get(KEY_VARIABLE) if api_key is None else api_key
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise ValueError(f"api_key, or {KEY_VARIABLE}: must be visible ASCII characters; is there a line's end in it?")
    return {"Authorization": f"Bearer {key}"} if key else {}


def body_of(images: Sequence[bytes]) -> tuple[bytes, str]:
    """Return a body and its Content-Type: one image is sent as it is, the fast path; several are sent as multipart."""
    if len(images) == 1:
        return images[0], "application/octet-stream"
    boundary = secrets.token_hex(16)  # 128 random bits are in no image
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="image"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    ).encode()
    parts = [piece for image in images for piece in (head, image, b"\r\n")]
    return b"".join((*parts, f"--{boundary}--\r\n".encode())), f"multipart/form-data; boundary={boundary}"
