"""Addresses: what is public, and what a machine, its network or its cloud keeps to itself."""

import socket

import pytest

from milkweed.server.fetch.addresses import is_public, resolve

PRIVATE = (
    *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
    *("100.100.100.200", "192.0.0.192", "192.0.0.9", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1"),
    *("192.88.99.1", "168.63.129.16", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fe80::1%2", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "ff0e::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1", "::127.0.0.1"),
    *("2002:7f00:1::", "2002:a9fe:a9fe::1", "2002:0a00:0001::1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe"),
    *("64:ff9b:1::808:808", "2001:0:7f00:1::", "2001:0:808:808::80ff:fffe", "100::1", "5f00::1", "4000::1"),
    *("", "localhost", "127.1", "0x7f000001", "2130706433", "1.2.3.4.5", "::g"),
)


@pytest.mark.parametrize("address", PRIVATE)
def test_what_is_not_on_the_internet_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]
)
def test_what_is_on_the_internet_is_public(address: str) -> None:
    assert is_public(address)


def test_a_name_is_resolved_as_it_is_and_below_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.append(host)
        return [(socket.AF_INET, 1, 6, "", ("8.8.8.8", port)), (socket.AF_INET6, 1, 6, "", ("2606::1", port, 0, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert resolve("images.example.com", 443) == [("8.8.8.8", 443), ("2606::1", 443)]
    assert asked == ["images.example.com."]
