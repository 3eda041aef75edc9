"""Who asks: the key of a request, its caller, what he has left; and where no key is needed."""

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from ..config.settings import OFF, Settings
from ..errors import ServiceError
from ..telemetry.metrics import Metrics
from .file_watcher import FileWatch
from .key_store import Account, KeyStore

SOURCE_KEY = "milkweed.source"
"""Where a request's scope says who asks: the caller's name, or the peer's address; None where neither is known."""

ACCOUNT_KEY = "milkweed.account"
"""Where a request's scope has the caller's account; missing where no key was needed."""

# Whoever starts, routes to or restarts this process has no key; the pages say nothing of what is served here.
PROBES = frozenset({"/livez", "/readyz", "/startupz", "/v2/health/live", "/v2/health/ready"})
PAGES = frozenset({"/", "/docs", "/openapi.json"})
PAGE_FILES = "/page/"
"""Before the name of each file that the page at `/` is made of."""

_BEARER = b"bearer "


class Authenticator:
    """What every request passes first. Without a file of keys it only notes the peer's address.

    Args:
        watch: looks after the file of keys.

    Raises:
        KeysError: the file cannot be used.
    """

    def __init__(self, settings: Settings, metrics: Metrics, watch: FileWatch) -> None:
        self._metrics = metrics
        self._ring: KeyStore | None = None
        self._open = PROBES | PAGES | ({"/metrics"} if settings.metrics_without_key else set())
        if settings.api_keys != OFF:
            ring = self._ring = KeyStore(Path(settings.api_keys))
            watch.add("api_keys", [ring.file], ring.reload)

    @property
    def closed(self) -> bool:
        """Whether keys are needed at all."""
        return self._ring is not None

    def is_open(self, path: str) -> bool:
        """Whether a path needs no key."""
        return self._ring is None or path in self._open or path.startswith(PAGE_FILES)

    def admit(self, scope: MutableMapping[str, Any], headers: Mapping[bytes, bytes]) -> None:
        """Let an HTTP request in and write down who asks.

        Raises:
            ServiceError: `unauthorized`, `rate_limited`.
        """
        if self.is_open(scope["path"]):
            client = scope.get("client")
            scope[SOURCE_KEY] = client[0] if client else None
            return
        account = scope[ACCOUNT_KEY] = self.identify(headers)
        scope[SOURCE_KEY] = account.name

    def identify(self, headers: Mapping[bytes, bytes]) -> Account:
        """Whose request this is, charged to him. gRPC metadata are such headers too.

        Args:
            headers: names in lower case.
        Raises:
            ServiceError: see `admit`.
        """
        assert self._ring is not None
        key = _key(headers)
        if key is None:
            raise ServiceError("unauthorized", "an API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY")
        account = self._ring.find(key)
        if account is None:
            raise ServiceError("unauthorized", "this API key is not known")
        self._metrics.caller_requests.labels(account.name).inc()
        try:
            self._ring.charge_request(account)
        except ServiceError:
            self._metrics.caller_refusals.labels(account.name, "requests").inc()
            raise
        return account

    def charge_images(self, account: Account | None, count: int) -> None:
        """Charge what a request turned out to hold; nothing where no key was needed.

        Raises:
            ServiceError: `rate_limited`.
        """
        if account is None or self._ring is None:
            return
        try:
            self._ring.charge_images(account, count)
        except ServiceError:
            self._metrics.caller_refusals.labels(account.name, "images").inc()
            raise


def _key(headers: Mapping[bytes, bytes]) -> bytes | None:
    given = headers.get(b"authorization", b"")
    if given[:7].lower() == _BEARER:
        return given[7:].strip()
    return headers.get(b"x-api-key") or None
