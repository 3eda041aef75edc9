"""Parses the hosts that images may be fetched from, and tells whether a URL's is one of them."""

import re

_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"

HOST = rf"(?:{_LABEL}\.)+[a-z](?:[a-z0-9-]{{0,61}}[a-z0-9])?"
"""A pattern of names in lower case, of two labels or more. The last one begins with a letter, which no address does,
however it is written: 127.1, 0x7f000001, 2130706433."""

_ENTRY = re.compile(rf"(?:(https?)://)?(\*\.)?({HOST})")
MAX_NAME = 253

FetchHosts = frozenset[tuple[str, str]]
"""Pairs of `http` or `https` and a name, which may begin with `*.`."""


def read_fetch_hosts(text: str) -> FetchHosts:
    """Read the hosts in the setting, separated by commas; `off` is none. Raises ValueError, naming a wrong entry."""
    entries: set[tuple[str, str]] = set()
    for entry in () if text == "off" else text.split(","):
        parts = _ENTRY.fullmatch(entry.strip().lower())
        if parts is None or len(parts[3]) > MAX_NAME:
            raise ValueError(f"{entry.strip()[:80]!r} is not NAME, *.NAME or http://NAME with a name of two labels")
        entries.add((parts[1] or "https", (parts[2] or "") + parts[3]))
    return frozenset(entries)


def is_listed(scheme: str, host: str, hosts: FetchHosts) -> bool:
    """Whether a name in lower case is among the hosts. `*.` stands for exactly one label, as in certificates."""
    return (scheme, host) in hosts or (scheme, "*." + host.partition(".")[2]) in hosts
