"""Admits requests: finds the caller of each by its API key and charges his limits; some paths need no key."""

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from ..config.compat import open_paths
from ..config.settings import OFF, Settings
from ..errors import ServiceError
from ..telemetry.context import RequestContext
from ..telemetry.metrics import Metrics
from .file_watcher import FileWatcher
from .key_store import Account, Charged, KeyStore

ACCOUNT_KEY = "milkweed.account"
"""Where a request's scope holds the caller's account; missing where no key was needed."""

# What starts, routes to or restarts this process has no key; the pages tell nothing of what is served here.
PROBES = frozenset({"/livez", "/readyz", "/health", "/startupz", "/v2/health/live", "/v2/health/ready"})
PAGES = frozenset({"/", "/docs", "/openapi.json"})
PAGE_FILES = "/page/"
"""The prefix of the files that the page at `/` loads."""

_BEARER = b"bearer "


class Authenticator:
    """Every request passes here first. Without a file of keys only the client's address is written down. `watcher`:
    reads the file of keys again when it changes. Raises KeysError where the file cannot be used,
    ValueError where Vertex AI's paths are missing."""

    def __init__(self, settings: Settings, metrics: Metrics, watcher: FileWatcher) -> None:
        self._metrics = metrics
        self._key_store: KeyStore | None = None
        self._open = (
            PROBES
            | PAGES
            | open_paths(settings.compat, os.environ)
            | ({"/metrics"} if settings.metrics_without_key else set())
        )
        if settings.api_keys != OFF:
            key_store = self._key_store = KeyStore(Path(settings.api_keys))
            watcher.add("api_keys", [key_store.file], key_store.reload)

    @property
    def needs_key(self) -> bool:
        """Whether keys are needed at all."""
        return self._key_store is not None

    def is_open(self, path: str) -> bool:
        """Whether a path needs no key."""
        return self._key_store is None or path in self._open or path.startswith(PAGE_FILES)

    def admit(self, scope: MutableMapping[str, Any], context: RequestContext) -> None:
        """Let an HTTP request in and write its caller into the context. Raises ServiceError `unauthorized`,
        `rate_limited`."""
        client = context.flow = scope.get("client")
        context.caller = client[0] if client else None
        if not self.is_open(scope["path"]):
            account = scope[ACCOUNT_KEY] = self.identify(context.headers)
            context.caller = context.flow = account.name

    def identify(self, headers: Mapping[bytes, bytes]) -> Account:
        """The account of the caller, charged for one request. gRPC metadata are such headers too. `headers`: names in
        lower case. Raises ServiceError, see `admit`."""
        assert self._key_store is not None
        key = _key(headers)
        if key is None:
            raise ServiceError("unauthorized", "an API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY")
        account = self._key_store.find(key)
        if account is None:
            raise ServiceError("unauthorized", "this API key is not known")
        self._metrics.caller_requests.labels(account.name).inc()
        self._charge(self._key_store, account, "requests", 1)
        return account

    def charge_images(self, account: Account | None, count: int) -> None:
        """Charge the images of a request; nothing where no key was needed. Raises ServiceError `rate_limited`."""
        if account is not None and self._key_store is not None:
            self._charge(self._key_store, account, "images", count)

    def _charge(self, key_store: KeyStore, account: Account, what: Charged, count: int) -> None:
        try:
            key_store.charge(account, what, count)
        except ServiceError:
            self._metrics.caller_refusals.labels(account.name, what).inc()
            raise


def _key(headers: Mapping[bytes, bytes]) -> bytes | None:
    authorization = headers.get(b"authorization", b"")
    if authorization[:7].lower() == _BEARER:
        return authorization[7:].strip()
    return headers.get(b"x-api-key") or None
