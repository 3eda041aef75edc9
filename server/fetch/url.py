"""Reads the URL of an image, or of a redirect, and refuses what is not plainly a name on a list."""

import re
from typing import NamedTuple
from urllib.parse import urljoin

from ..config.fetch_hosts import HOST, MAX_NAME, FetchHosts, is_listed

# Nothing that readers of URLs disagree on: no userinfo, no backslash, space or control character, no other name for a
# host (an escape, another alphabet, an address in any spelling, a dot at the end).
_PRINTABLE = re.compile(r"[!-\[\]-~]+")
_URL = re.compile(rf"(https?)://({HOST})(:\d+)?([/?][^#]*)?(?:#.*)?", re.IGNORECASE | re.ASCII)
_PORTS = {"http": 80, "https": 443}


class FetchTarget(NamedTuple):
    """What to ask for, and of whom: `scheme` and `host` in lower case, `path` with its query, without a fragment."""

    scheme: str
    host: str
    path: str

    @property
    def port(self) -> int:
        """The port is the scheme's: no other is allowed."""
        return _PORTS[self.scheme]


def read_url(text: str, hosts: FetchHosts) -> FetchTarget | None:
    """What a URL stands for; None where it is none of the hosts', or not plainly so."""
    parts = _URL.fullmatch(text) if _PRINTABLE.fullmatch(text) else None
    if parts is None:
        return None
    scheme, host, path = parts[1].lower(), parts[2].lower(), parts[4] or "/"
    target = FetchTarget(scheme, host, path if path[0] == "/" else "/" + path)
    fits = len(host) <= MAX_NAME and parts[3] in (None, f":{target.port}")
    return target if fits and is_listed(scheme, host, hosts) else None


def read_redirect(text: str, source: FetchTarget, hosts: FetchHosts) -> FetchTarget | None:
    """What a `Location` in the answer of `source` stands for, by the same rules."""
    if not _PRINTABLE.fullmatch(text):
        return None  # urljoin would drop some characters
    try:
        return read_url(urljoin(f"{source.scheme}://{source.host}{source.path}", text), hosts)
    except ValueError:  # brackets that do not match
        return None
