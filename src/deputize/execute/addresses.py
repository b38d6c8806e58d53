"""Which addresses may be reached at all: said of addresses alone, however a name or a number led to them.

Above: `egress.py`, which asks before it connects. Below: nothing; no packet is sent from here.
"""

import ipaddress

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
# Translated at the edge of a network: the well-known prefix, and the one for use within it.
_NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
# How IPv4 was once written in IPv6. `::` and `::1` look like it and are something else.
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_OF_ITS_OWN = frozenset({ipaddress.IPv6Address("::"), ipaddress.IPv6Address("::1")})
# Cloud metadata services that stand outside the link-local ranges.
_METADATA = frozenset({ipaddress.ip_address("fd00:ec2::254"), ipaddress.ip_address("100.100.100.200")})


def is_public(text: str) -> bool:
    address = _meant(text)
    return address.is_global and not (address.is_multicast or address.is_reserved or address in _METADATA)


def is_never_meant(text: str) -> bool:
    """Addresses that nobody may name, operators included: metadata services, this network, everybody. Whoever reaches
    the first can ask a cloud for the keys of the machine this runs on.
    """
    address = _meant(text)
    special = address.is_link_local or address.is_multicast or address.is_unspecified
    return special or address in _METADATA


def _meant(text: str) -> _Address:
    """The address, or the IPv4 address that it stands for, where it stands for one."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv4Address):
        return address
    # An interface named with it changes nothing about where it leads.
    address = ipaddress.IPv6Address(int(address))
    if any(address in each for each in _NAT64) or (address in _COMPATIBLE and address not in _OF_ITS_OWN):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    teredo = address.teredo[1] if address.teredo else None
    return address.ipv4_mapped or address.sixtofour or teredo or address
