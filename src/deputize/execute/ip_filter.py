"""Classify IP addresses as public or forbidden. `egress.py` uses it before it connects; nothing here sends packets."""

import ipaddress
from collections.abc import Iterator

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# Ranges that are not public, whatever this version of Python says of them.
_NOT_PUBLIC: tuple[_Network, ...] = tuple(
    ipaddress.ip_network(each)
    for each in (
        "0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15",
        "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
        # Ways to reach an IPv4 network through IPv6: IPv4-compatible, NAT64, Teredo and 6to4.
        "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16",
        # Site-local (deprecated, and still routed inside networks), discard, documentation, segment routing.
        "fec0::/10", "100::/64", "2001:db8::/32", "3fff::/20", "5f00::/16",
    )
)  # fmt: skip
_GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
_TRANSLATED = ipaddress.IPv6Network("::ffff:0:0:0/96")
# `::` and `::1` are in the range of IPv4-compatible addresses but are not such addresses.
_NOT_EMBEDDED = frozenset({ipaddress.IPv6Address("::"), ipaddress.IPv6Address("::1")})
# ISATAP: an interface identifier that ends with an IPv4 address, below any prefix.
_ISATAP = frozenset({0x0000_5EFE, 0x0200_5EFE})
# Cloud metadata services outside the link-local ranges. One is a public address that each machine of its cloud reaches
# as its own platform.
_METADATA = frozenset(
    ipaddress.ip_address(each)
    for each in (
        "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:42::42", "fd00:a9fe:a9fe::1", "fd00:ec2::23",
        "fd00:ec2::253", "fd00:ec2::254", "fd20:ce::254",
    )
)  # fmt: skip


def is_public_address(text: str) -> bool:
    """Tell whether an address is public, so that any tool may connect to it."""
    address = _parse_address(text)
    return _is_public(address) and all(_is_public(each) for each in _list_embedded_ipv4(address))


def is_forbidden_address(text: str) -> bool:
    """Tell whether an address is always refused, even if the operator allows its host.

    These are link-local, multicast and unspecified addresses and cloud metadata services, which hand out the machine's
    credentials.
    """
    address = _parse_address(text)
    return any(
        each.is_link_local or each.is_multicast or each.is_unspecified or each in _METADATA
        for each in (address, *_list_embedded_ipv4(address))
    )


def _parse_address(text: str) -> _Address:
    """Parse an address. Drop its zone id, which does not change it, and unwrap an IPv4-mapped one."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv4Address):
        return address
    address = ipaddress.IPv6Address(int(address))
    return address.ipv4_mapped or address


def _is_public(address: _Address) -> bool:
    if not address.is_global or address.is_multicast or address.is_reserved or address in _METADATA:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_IPV6:
        return False
    return not any(address in network for network in _NOT_PUBLIC if network.version == address.version)


def _list_embedded_ipv4(address: _Address) -> Iterator[ipaddress.IPv4Address]:
    """List the IPv4 addresses that packets to an IPv6 address may be translated or tunnelled to."""
    if isinstance(address, ipaddress.IPv4Address):
        return
    number = int(address)
    is_compatible = address in _COMPATIBLE and address not in _NOT_EMBEDDED
    if is_compatible or any(address in network for network in (_NAT64, _LOCAL_NAT64, _TRANSLATED)):
        yield ipaddress.IPv4Address(number & 0xFFFF_FFFF)
    if address in _LOCAL_NAT64:
        # A prefix of 48 bits splits the IPv4 address around bits 64 to 71 (RFC 6052).
        yield ipaddress.IPv4Address((number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF)
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if number >> 32 & 0xFFFF_FFFF in _ISATAP:
        yield ipaddress.IPv4Address(number & 0xFFFF_FFFF)
