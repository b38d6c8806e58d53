"""Test which addresses are public and which are always refused, without opening a connection."""

from collections.abc import Sequence
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.errors import EgressDenied
from deputize.execute.egress import HostResolver, normalize_host, resolve_allowed_addresses, resolve_host
from deputize.execute.ip_filter import is_forbidden_address, is_public_address

NEVER_ALLOWED = (
    "169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%lo", "febf::1", "fd00:ec2::254", "100.100.100.200",
    "::ffff:169.254.169.254", "::169.254.169.254", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::",
    "64:ff9b:1:a9fe:a9:fe00::", "2001:0:a9fe:a9fe::", "2001::5601:5601", "2606:4700::5efe:169.254.169.254",
    "224.0.0.1", "0.0.0.0", "::",
    # Metadata services with addresses of their own, one of them public by its number; IPv4-translated (RFC 2765).
    "168.63.129.16", "192.0.0.192", "fd00:42::42", "fd00:a9fe:a9fe::1", "fd00:ec2::23", "fd20:ce::254",
    "::ffff:0:a9fe:a9fe",
)  # fmt: skip
# Numeric addresses, which every resolver parses without a DNS query.
SPELLINGS = (
    "169.254.169.254", "169.254.43518", "169.16689662", "2852039166", "0xa9fea9fe", "0xa9.0xfe.0xa9.0xfe",
    "0251.0376.0251.0376", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "fe80::1", "fd00:ec2::254",
)  # fmt: skip


def make_resolver(*addresses: str) -> HostResolver:
    async def resolver(host: str, port: int) -> Sequence[str]:
        return addresses

    return resolver


# Ranges that are not public, each tried with its first, its last and a middle address.
NOT_PUBLIC = {
    "this network": "0.0.0.0/8",
    "private 10": "10.0.0.0/8",
    "shared by carriers": "100.64.0.0/10",
    "loopback": "127.0.0.0/8",
    "link-local": "169.254.0.0/16",
    "private 172": "172.16.0.0/12",
    "protocol assignments": "192.0.0.0/24",
    "documentation 1": "192.0.2.0/24",
    "6to4 relays": "192.88.99.0/24",
    "private 192": "192.168.0.0/16",
    "benchmarks": "198.18.0.0/15",
    "documentation 2": "198.51.100.0/24",
    "documentation 3": "203.0.113.0/24",
    "multicast": "224.0.0.0/4",
    "reserved": "240.0.0.0/4",
    "IPv4-compatible": "::/96",
    "IPv4-mapped private": "::ffff:10.0.0.0/104",
    "IPv4-mapped carriers": "::ffff:100.64.0.0/106",
    "NAT64": "64:ff9b::/96",
    "NAT64 local": "64:ff9b:1::/48",
    "discard": "100::/64",
    "Teredo": "2001::/32",
    "documentation": "2001:db8::/32",
    "6to4 private": "2002:a00::/24",
    "6to4": "2002::/16",
    "documentation, newer": "3fff::/20",
    "segment routing": "5f00::/16",
    "unallocated": "4000::/3",
    "unique local": "fc00::/7",
    "link-local v6": "fe80::/10",
    "site-local": "fec0::/10",
    "multicast v6": "ff00::/8",
}


@pytest.mark.parametrize("network", NOT_PUBLIC.values(), ids=NOT_PUBLIC)
def test_no_address_of_a_range_that_is_not_public_is_public(network: str) -> None:
    within = ip_network(network)
    for address in (within[0], within[-1], within[within.num_addresses // 3]):
        assert not is_public_address(str(address))


@pytest.mark.parametrize(
    "address",
    ["100.100.100.200", "fd00:ec2::254", "2606:4700::5efe:10.0.0.1", "2606:4700::200:5efe:192.168.1.1", "fec0::1%eth0"],
)
def test_other_addresses_that_are_not_public_are_known(address: str) -> None:
    assert not is_public_address(address)


@pytest.mark.parametrize(
    "address",
    [
        "93.184.215.14", "8.8.8.8", "100.63.255.255", "100.128.0.1", "198.17.255.255", "198.20.0.1", "192.0.1.1",
        "::ffff:8.8.8.8", "2606:4700::1111", "2001:4860:4860::8888", "2a00:1450::1", "2606:4700::5efe:8.8.8.8",
    ],
)  # fmt: skip
def test_addresses_that_are_public_are_known(address: str) -> None:
    assert is_public_address(address)


@pytest.mark.parametrize("address", NEVER_ALLOWED)
def test_what_nobody_may_name_is_known_however_it_is_written(address: str) -> None:
    assert is_forbidden_address(address)
    assert not is_public_address(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.0.0.7", "fd12:3456::1", "8.8.8.8", "170.254.0.1"])
def test_what_an_operator_may_name_is_not_among_it(address: str) -> None:
    assert not is_forbidden_address(address)


@given(st.integers(min_value=0, max_value=0xFFFF))
def test_no_address_of_the_link_is_left_out(rest: int) -> None:
    assert is_forbidden_address(f"169.254.{rest >> 8}.{rest & 255}")
    assert is_forbidden_address(f"::ffff:a9fe:{rest:x}")
    assert is_forbidden_address(f"fe80::{rest:x}")


@pytest.mark.parametrize("spelt", SPELLINGS)
async def test_no_spelling_is_allowed_to_an_operator_who_names_it(spelt: str) -> None:
    with pytest.raises(EgressDenied, match="never allowed"):
        await resolve_allowed_addresses(spelt, 80, frozenset({normalize_host(spelt)}), resolve_host)


@pytest.mark.parametrize("address", NEVER_ALLOWED)
async def test_no_name_is_allowed_that_leads_there_when_it_is_asked(address: str) -> None:
    for answers in ([address], ["10.0.0.7", address]):
        with pytest.raises(EgressDenied, match="never allowed"):
            await resolve_allowed_addresses(
                "server.internal", 443, frozenset({"server.internal"}), make_resolver(*answers)
            )


async def test_a_name_that_an_operator_allows_may_lead_into_their_own_network() -> None:
    allowed = frozenset({"server.internal"})
    assert await resolve_allowed_addresses("server.internal", 443, allowed, make_resolver("10.0.0.7", "::1")) == [
        "10.0.0.7",
        "::1",
    ]
    with pytest.raises(EgressDenied, match="not public"):
        await resolve_allowed_addresses("other.internal", 443, allowed, make_resolver("10.0.0.7"))
