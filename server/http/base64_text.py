"""Decodes base64 (RFC 4648) as encoders write it: bare, in a data URI, in lines, url-safe, without padding."""

import binascii
import re

from msgspec import Raw

_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_DATA_URI = re.compile(rb"\s*data:[^,]{0,200}?(;base64)?,", re.IGNORECASE)
_ODD = re.compile(rb"[^A-Za-z0-9+/_=\s-]")

# What JSON may escape of it. The longer ones, which some encoders write without need, escape nothing else.
_ESCAPES = ((rb"\/", b"/"), (rb"\n", b"\n"), (rb"\r", b"\r"), (rb"\t", b"\t"))
_LONG_ESCAPE = re.compile(rb"\\u00(0[9aAdD]|2[0bBdDfF]|3[dD]|5[fF])")


def from_base64(text: bytes | Raw) -> bytes:
    """The bytes in base64, or in a JSON string of it (`Raw`), without making a string. Raises ValueError, which says
    what is wrong and where."""
    view = memoryview(text)
    if isinstance(text, Raw):
        if view[0] != ord('"'):
            raise ValueError("it is no string")
        view = view[1:-1]
    try:
        return binascii.a2b_base64(view, strict_mode=True)
    except ValueError:
        return _lenient(_unescaped(bytes(view)) if isinstance(text, Raw) else text)


def _unescaped(text: bytes) -> bytes:
    for escape, character in _ESCAPES:
        text = text.replace(escape, character)
    return _LONG_ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), text)


def _lenient(text: bytes) -> bytes:
    uri = _DATA_URI.match(text)
    start = uri.end() if uri else 0
    if uri and not uri[1]:
        raise ValueError("a data URI without ;base64")
    if odd := _ODD.search(text, start):
        raise ValueError(f"byte 0x{text[odd.start()]:02x} at {odd.start()}")
    text = text[start:].translate(_URL_SAFE, b" \t\r\n\f\v")
    return binascii.a2b_base64(text + b"=" * (-len(text) % 4), strict_mode=True)
