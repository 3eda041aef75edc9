"""URLs of images: plain names on the list, and none of the ways to write something else that looks like one."""

import pytest

from milkweed.server.config.fetch_hosts import read_fetch_hosts
from milkweed.server.fetch.url import FetchTarget, read_redirect, read_url

HOSTS = read_fetch_hosts("images.example.com,http://plain.example.com,*.store.example.com")

REFUSED = (
    # other hosts, and what only looks like one of ours
    *("https://example.com/a", "https://images.example.com.evil.example/a", "https://evilimages.example.com/a"),
    *("https://images.example.comevil.example/a", "https://a.b.store.example.com/a", "https://store.example.com/a"),
    *("https://.store.example.com/a", "https://*.store.example.com/a", "https://localhost/a", "https://images/a"),
    *(
        "https://metadata.google.internal/computeMetadata/v1/",
        "https://-.store.example.com/a",
        "https:///a",
        "https://",
    ),
    # addresses, in every spelling
    *(
        "https://127.0.0.1/a",
        "https://169.254.169.254/latest/meta-data/",
        "https://2130706433/a",
        "https://0x7f000001/a",
    ),
    *("https://0177.0.0.1/a", "https://127.1/a", "https://0/a", "https://1.2.3.0x4/a", "https://[::1]/a"),
    *("https://[::ffff:127.0.0.1]/a", "https://[fe80::1%25eth0]/a", "https://[::]/a", "https://①②⑦.⓪.⓪.①/a"),
    # userinfo, ports, other names for a host
    *(
        "https://user@images.example.com/a",
        "https://user:word@images.example.com/a",
        "https://images.example.com@evil/a",
    ),
    *("https://images.example.com:443@evil.example/a", "https://evil.example#@images.example.com/a"),
    *("https://images.example.com:80/a", "https://images.example.com:8443/a", "https://images.example.com:/a"),
    *("https://images.example.com:0443/a", "https://images.example.com:443:443/a", "http://plain.example.com:443/a"),
    *("https://images.example.com./a", "https://images%2eexample.com/a", "https://images.example%2ecom/a"),
    *("https://ımages.example.com/a", "https://images。example.com/a", "https://images.example.com\u3002/a"),
    # other schemes
    *("http://images.example.com/a", "https://plain.example.com/a", "ftp://images.example.com/a", "file:///etc/passwd"),
    *(
        "gopher://images.example.com/a",
        "//images.example.com/a",
        "https:/images.example.com/a",
        "https:images.example.com",
    ),
    *("https:\\\\images.example.com\\a", "https://images.example.com\\@evil/a", "https://images.example.com/a\\b", ""),
    # what some readers drop and others keep
    *(" https://images.example.com/a", "https://images.example.com/a ", "ht\ntps://images.example.com/a"),
    *("https://images.exa\tmple.com/a", "https://images.example.com/a\r\nHost: evil", "https://images.example.com/\0"),
    *("https://images.example.com/a b", "https://images.example.com/ü", "https://evil\u2215images.example.com/a"),
    "https://" + "a." * 130 + "store.example.com/a",
)


@pytest.mark.parametrize("url", REFUSED)
def test_what_is_not_plainly_a_listed_name_is_refused(url: str) -> None:
    assert read_url(url, HOSTS) is None


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://images.example.com/a.jpg", FetchTarget("https", "images.example.com", "/a.jpg")),
        (
            "HTTPS://Images.EXAMPLE.com:443/A%20b?x=1&y=@#part",
            FetchTarget("https", "images.example.com", "/A%20b?x=1&y=@"),
        ),
        ("https://images.example.com", FetchTarget("https", "images.example.com", "/")),
        ("https://images.example.com?x", FetchTarget("https", "images.example.com", "/?x")),
        ("https://images.example.com#@evil.example/", FetchTarget("https", "images.example.com", "/")),
        ("https://my-bucket.store.example.com/k", FetchTarget("https", "my-bucket.store.example.com", "/k")),
        ("http://plain.example.com:80/a", FetchTarget("http", "plain.example.com", "/a")),
    ],
)
def test_a_listed_name_is_a_target(url: str, target: FetchTarget) -> None:
    assert read_url(url, HOSTS) == target
    assert target.port == {"http": 80, "https": 443}[target.scheme]


SOURCE = FetchTarget("https", "images.example.com", "/folder/a?x")


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("b.jpg", "/folder/b.jpg"),
        ("/b.jpg", "/b.jpg"),
        ("../../b.jpg", "/b.jpg"),
        ("//images.example.com/b", "/b"),
        ("https://images.example.com/b", "/b"),
        ("?y", "/folder/a?y"),
    ],
)
def test_a_redirect_may_be_relative(location: str, path: str) -> None:
    assert read_redirect(location, SOURCE, HOSTS) == FetchTarget("https", "images.example.com", path)


# They name no host: as a Location they mean a path of the host that sent them.
RELATIVE = {
    "https://",
    "https:///a",
    "https:/images.example.com/a",
    "https:images.example.com",
    "//images.example.com/a",
}


@pytest.mark.parametrize("location", [*REFUSED, "//evil.example/b", "\\\\evil.example", "https://[", "//[::1"])
def test_a_redirect_is_held_to_the_same_rules(location: str) -> None:
    target = read_redirect(location, SOURCE, HOSTS)
    assert (target and (target.scheme, target.host)) == (SOURCE[:2] if location in RELATIVE else None)
