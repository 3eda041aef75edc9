"""Makes API keys and reads the file that holds their hashes.

A key is 256 random bits, so guessing is hopeless however fast a guess is checked, and the file holds its plain
SHA-256: a slow, salted hash (scrypt, argon2) protects passwords, which people choose and repeat; here it would
protect nothing and cost each request more than its answer.
"""

import hashlib
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

KEY_PREFIX = "mw_"  # lets people and scanners for leaked secrets recognise one
KEY_BYTES = 32

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
MAX_NAMES = 1000  # each name is a label of metrics
MAX_FILE_BYTES = 4 << 20


class KeysError(ValueError):
    """A file of keys cannot be used; the message is one line and holds nothing of a key."""


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """A named owner of keys: their hashes, and the limits of what may be sent with them; None is no limit."""

    name: str
    digests: tuple[bytes, ...]
    requests_per_second: float | None = None
    request_burst: int | None = None
    images_per_second: float | None = None
    image_burst: int | None = None


class _Row(BaseModel):
    """One `[[key]]` of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    name: str = Field(pattern=NAME_PATTERN)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    requests_per_second: float | None = Field(default=None, gt=0, le=1e9)
    request_burst: int | None = Field(default=None, ge=1, le=10**9)
    images_per_second: float | None = Field(default=None, gt=0, le=1e9)
    image_burst: int | None = Field(default=None, ge=1, le=10**9)


_LIMITS = ("requests_per_second", "request_burst", "images_per_second", "image_burst")


def new_key() -> str:
    """Make a key, to be shown once and stored nowhere."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def hash_key(key: bytes) -> bytes:
    """The hash that is stored of a key: its SHA-256, 32 bytes."""
    return hashlib.sha256(key).digest()


def key_block(name: str, key: str) -> str:
    """The lines of a key for the file of keys."""
    return f'[[key]]\nname = "{name}"\nsha256 = "{hash_key(key.encode()).hex()}"\n'


def read_keys(file: Path) -> dict[str, KeyOwner]:
    """The callers in a file of keys, by name. Raises KeysError, which says what is wrong and in which entry."""
    try:
        with file.open("rb") as stream:
            text = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise KeysError(f"API keys {file}: {error.strerror}") from None
    if len(text) > MAX_FILE_BYTES:
        raise KeysError(f"API keys {file}: more than {MAX_FILE_BYTES} bytes")
    try:
        return parse_keys(tomllib.loads(text.decode("utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise KeysError(f"API keys {file} is not TOML: {error}") from None
    except KeysError as error:
        raise KeysError(f"API keys {file}: {error}") from None


def parse_keys(document: Mapping[str, object]) -> dict[str, KeyOwner]:
    """The callers of a parsed file, by name. Entries of one name are keys of one caller. Raises KeysError, see
    `read_keys`."""
    rows = document.get("key", [])
    if document.keys() - {"key"} or not isinstance(rows, list):
        raise KeysError("expected [[key]] entries and nothing else")
    callers: dict[str, KeyOwner] = {}
    owners: dict[bytes, str] = {}
    for number, entry in enumerate(rows, 1):
        row = _row(entry, number)
        digest = bytes.fromhex(row.sha256)
        if owners.setdefault(digest, row.name) != row.name:
            raise KeysError(f"key {number} ({row.name}): {owners[digest]} has the same sha256")
        before = callers.get(row.name)
        callers[row.name] = _merge(before, row, digest, number)
    if len(callers) > MAX_NAMES:
        raise KeysError(f"{len(callers)} names; the limit is {MAX_NAMES}")
    return callers


def _row(entry: object, number: int) -> _Row:
    try:
        row = _Row.model_validate(entry)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = entry.get("name") if isinstance(entry, dict) else None
        who = f" ({name})" if isinstance(name, str) and len(name) <= 64 and first["loc"] != ("name",) else ""
        field = str(first["loc"][0]) if first["loc"] else "entry"
        if field == "sha256":  # the pattern would help nobody; a key put there by mistake is the likely cause
            raise KeysError(
                f"key {number}{who}: sha256 must be 64 digits of lower case hex, not the key itself"
            ) from None
        raise KeysError(f"key {number}{who}: {field}: {first['msg'][0].lower()}{first['msg'][1:]}") from None
    for rate, burst in (("requests_per_second", "request_burst"), ("images_per_second", "image_burst")):
        if getattr(row, burst) is not None and getattr(row, rate) is None:
            raise KeysError(f"key {number} ({row.name}): {burst} without {rate}")
    return row


def _merge(before: KeyOwner | None, row: _Row, digest: bytes, number: int) -> KeyOwner:
    """The caller with one key more. Its limits may stand with any of its keys, or the same limits with several."""
    limits = {name: getattr(row, name) for name in _LIMITS}
    if before is None:
        return KeyOwner(row.name, (digest,), **limits)
    for name, value in limits.items():
        earlier = getattr(before, name)
        if value is not None and earlier is not None and value != earlier:
            raise KeysError(f"key {number} ({row.name}): {name} = {value}, another key of {row.name} says {earlier}")
        limits[name] = earlier if value is None else value
    return KeyOwner(row.name, (*before.digests, digest), **limits)
