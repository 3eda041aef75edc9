"""Holds the keys in force, and how many requests and images each caller may still send."""

import hashlib
import hmac
import math
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from ..errors import ServiceError
from .keys import KeyOwner, hash_key, read_keys

# No key is longer; a longer one is not even hashed.
MAX_KEY_BYTES = 256


Charged = Literal["requests", "images"]


class TokenBucket:
    """Holds up to `burst` tokens and gains `rate` a second. Belongs to one thread.

    Args:
        rate: tokens a second.
        burst: the most tokens it holds, and what it starts with; None is a second's worth.
        now: monotonic seconds.
    """

    __slots__ = ("_at", "_tokens", "burst", "rate")

    def __init__(self, rate: float, burst: int | None, now: float) -> None:
        self.rate = rate
        self.burst = float(burst or max(1, math.ceil(rate)))
        self._tokens = self.burst
        self._at = now

    def take(self, count: int, now: float) -> float:
        """Take tokens: 0 where they were taken; else the seconds until they could be. A full bucket gives more than
        `burst` and then owes the rest, so that the rate holds."""
        tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
        self._at = now
        needed = min(count, self.burst)
        if tokens >= needed:
            self._tokens = tokens - count
            return 0.0
        self._tokens = tokens
        return (needed - tokens) / self.rate


class Account:
    """What a caller may still send. Charged on the event loop only. `before`: the caller's account under the keys
    before these: what is used up stays used up."""

    __slots__ = ("caller", "images", "name", "requests")

    def __init__(self, caller: KeyOwner, before: "Account | None", now: float) -> None:
        self.caller = caller
        self.name = caller.name
        self.requests: TokenBucket | None = _bucket(
            caller.requests_per_second, caller.request_burst, now, before.requests if before else None
        )
        self.images: TokenBucket | None = _bucket(
            caller.images_per_second, caller.image_burst, now, before.images if before else None
        )


class KeyStore:
    """Finds the account of a key.

    The look-up is by a hash under a secret that only this process has, so that its time tells nothing of the keys. The
    key that it finds is also compared in constant time.

    Args:
        file: see `keys.read_keys`.
        clock: monotonic seconds.
    """

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.file = file
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._accounts: Mapping[str, Account] = {}
        self._owners: Mapping[bytes, tuple[bytes, Account]] = {}

    def reload(self) -> None:
        """Read the file, on any thread; all keys change at once. Raises KeysError where the file cannot be used; the
        keys stay as they were."""
        now = self._clock()
        accounts = {
            name: Account(caller, self._accounts.get(name), now) for name, caller in read_keys(self.file).items()
        }
        owners = {
            self._mac(digest): (digest, account) for account in accounts.values() for digest in account.caller.digests
        }
        self._accounts, self._owners = accounts, owners

    def find(self, key: bytes) -> Account | None:
        """The account of a key; None where there is none."""
        if len(key) > MAX_KEY_BYTES:
            return None
        digest = hash_key(key)
        owner = self._owners.get(self._mac(digest))
        if owner is None or not hmac.compare_digest(owner[0], digest):
            return None
        return owner[1]

    def charge(self, account: Account, what: Charged, count: int = 1) -> None:
        """Charge an account for requests or images. Raises ServiceError `rate_limited` where they come too fast."""
        bucket: TokenBucket | None = getattr(account, what)
        if bucket is None:
            return
        wait = bucket.take(count, self._clock())
        if wait > 0:
            raise ServiceError(
                "rate_limited",
                f"this key may send {bucket.rate:g} {what} a second, {bucket.burst:g} at once",
                retry_after_seconds=max(1, math.ceil(wait)),
            )

    def _mac(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._secret, digest_size=16).digest()


def _bucket(rate: float | None, burst: int | None, now: float, before: TokenBucket | None) -> TokenBucket | None:
    if rate is None:
        return None
    made = TokenBucket(rate, burst, now)
    if before is not None and (before.rate, before.burst) == (made.rate, made.burst):
        return before
    return made
