"""The setting fetch_hosts: names, names of one label below another, and nothing that could be an address."""

import pytest

from milkweed.server.config.fetch_hosts import is_listed, read_fetch_hosts
from milkweed.server.config.sources import SettingsError, load_settings


@pytest.mark.parametrize(
    ("setting", "scheme", "host", "listed"),
    [
        ("a.example.com", "https", "a.example.com", True),
        ("A.Example.com, b.example.com", "https", "a.example.com", True),
        ("https://a.example.com", "https", "a.example.com", True),
        ("a.example.com", "http", "a.example.com", False),
        ("http://a.example.com", "http", "a.example.com", True),
        ("http://a.example.com", "https", "a.example.com", False),
        ("a.example.com", "https", "b.a.example.com", False),
        ("a.example.com", "https", "xa.example.com", False),
        ("*.example.com", "https", "a.example.com", True),
        ("*.example.com", "https", "b.a.example.com", False),
        ("*.example.com", "https", "example.com", False),
        ("*.example.com", "https", "aexample.com", False),
        ("*.example.com", "http", "a.example.com", False),
        ("off", "https", "off", False),
    ],
)
def test_a_name_is_listed_or_not(setting: str, scheme: str, host: str, listed: bool) -> None:
    assert is_listed(scheme, host, read_fetch_hosts(setting)) == listed


@pytest.mark.parametrize(
    "entry",
    [
        *(
            "",
            "*",
            "*.com",
            "com",
            "localhost",
            "a.example.com,",
            "a_b.example.com",
            "-a.example.com",
            "a..example.com",
        ),
        *("127.0.0.1", "127.1", "0x7f.1", "1.2.3.0x4", "2130706433", "[::1]", "a.example.com.", "bücher.example"),
        *("a.example.com:443", "a.example.com/x", "u@a.example.com", "ftp://a.example.com", "a.*.example.com"),
        *("**.example.com", "*a.example.com", "a example.com", f"{'a' * 64}.example.com", "a." * 126 + "com"),
    ],
)
def test_what_is_no_name_is_refused_at_the_start(entry: str) -> None:
    with pytest.raises(SettingsError, match="--fetch-hosts") as caught:
        load_settings({"fetch_hosts": entry})
    assert "\n" not in str(caught.value)


def test_nothing_is_fetched_by_default() -> None:
    assert read_fetch_hosts(load_settings().fetch_hosts) == frozenset()
