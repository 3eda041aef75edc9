"""A running milkweed server as a client sees it: one image in, one result out."""

import json
import os
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from .failure import WRONG_USAGE, Failure

TIMEOUT_SECONDS = 60.0

KEY_VARIABLE = "MILKWEED_API_KEY"
"""Where the key is that a server may ask for: options can be read by everybody on the machine."""

Result = dict[str, Any]
"""One entry of `results`, as the interface has it: `predictions` or `error`."""


class RemoteServer:
    """Posts images to `URL/classify`, one request an image, the fast raw form.

    Args:
        url: of the server, or of its /classify.
        top_k: classes an answer; the server's own number when None.

    Raises:
        Failure: not an http address.
    """

    def __init__(self, url: str, top_k: int | None) -> None:
        import httpx

        self._given = url
        self._url = _endpoint(url)
        self._params = {} if top_k is None else {"top_k": str(top_k)}
        self._client = httpx.Client(timeout=TIMEOUT_SECONDS)
        self._failed = (httpx.HTTPError, httpx.InvalidURL)
        self.identity: dict[str, str] = {}

    def __call__(self, image: bytes) -> Result:
        """The server's result for one image.

        Raises:
            Failure: no server there, or one that is not milkweed's.
        """
        headers = {"Content-Type": "application/octet-stream"}
        if key := os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        try:
            response = self._client.post(self._url, params=self._params, content=image, headers=headers)
        except self._failed as error:
            what = str(error) or type(error).__name__
            raise Failure(f"--url {self._given}: no answer from {self._url}: {what}") from error
        try:
            return self._result(json.loads(response.content))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise Failure(
                f"--url {self._given}: {self._url} answered {response.status_code}, but not as milkweed does"
            ) from error

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _result(self, document: dict[str, Any]) -> Result:
        if "results" not in document:
            error = document["error"]
            return {"error": {"code": str(error["code"]), "message": str(error["message"])}}
        self.identity = {"model": str(document["model"]), "version": str(document["version"])}
        result = document["results"][0]
        if "predictions" in result:
            return {"predictions": [dict(entry) for entry in result["predictions"]]}
        return {"error": dict(result["error"])}


def _endpoint(url: str) -> str:
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise Failure(f"--url {url}: must be http://HOST[:PORT] or https://...", WRONG_USAGE)
    path = parts.path.rstrip("/")
    return urlunsplit(parts._replace(path=path if path.endswith("/classify") else f"{path}/classify"))
