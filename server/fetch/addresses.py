"""Resolves a name to addresses, and tells which of them are anybody's on the internet."""

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = tuple[str, int]
"""An IP address and a port."""

# What `is_global` of some Pythons takes for public: protocol assignments, among them a cloud's metadata (192.0.0.192),
# the relays of 6to4, and Azure's own server, which only its machines see.
_NOT_PUBLIC = tuple(map(IPv4Network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32")))
_UNICAST = IPv6Network("2000::/3")  # all that is assigned for the internet
_NAT64 = IPv6Network("64:ff9b::/96")


def resolve(host: str, port: int) -> list[Address]:
    """The addresses of a name; blocks. Raises OSError. The dot keeps it from being looked for in the domains that
    resolv.conf lists, such as a cluster's."""
    return [(str(entry[4][0]), port) for entry in socket.getaddrinfo(host + ".", port, type=socket.SOCK_STREAM)]


def is_public(text: str) -> bool:
    """Whether an address is public, and each IPv4 address in it: mapped, 6to4, Teredo, NAT64."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv4Address):
        return _is_public_v4(address)
    embedded = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        embedded.append(IPv4Address(int(address) & 0xFFFFFFFF))
    elif address.ipv4_mapped is None and not _is_public_v6(address):
        return False
    return all(inner is None or _is_public_v4(inner) for inner in embedded)


def _is_public_v4(address: IPv4Address) -> bool:
    assigned = address.is_global and not address.is_multicast and not address.is_reserved
    return assigned and not any(address in network for network in _NOT_PUBLIC)


def _is_public_v6(address: IPv6Address) -> bool:
    return address in _UNICAST and address.is_global and address.scope_id is None
