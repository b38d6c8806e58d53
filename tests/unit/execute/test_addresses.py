"""Which addresses may be reached, and which nobody may name. Nothing here opens a connection."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.errors import EgressDenied
from deputize.execute.addresses import is_never_meant, is_public
from deputize.execute.egress import Resolve, normal_host, reachable, resolve

NEVER = (
    "169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%lo", "febf::1", "fd00:ec2::254", "100.100.100.200",
    "::ffff:169.254.169.254", "::169.254.169.254", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::",
    "224.0.0.1", "0.0.0.0", "::",
)  # fmt: skip
# As numbers, which every resolver reads without asking anybody.
SPELLINGS = (
    "169.254.169.254", "169.254.43518", "169.16689662", "2852039166", "0xa9fea9fe", "0xa9.0xfe.0xa9.0xfe",
    "0251.0376.0251.0376", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "fe80::1", "fd00:ec2::254",
)  # fmt: skip


def answering(*addresses: str) -> Resolve:
    async def resolver(host: str, port: int) -> Sequence[str]:
        return addresses

    return resolver


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
        "100.100.100.200", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
        "::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:10.0.0.1", "2002:7f00:1::",
        "64:ff9b::7f00:1", "2001:db8::1",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public_are_known(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.215.14", "8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"])
def test_addresses_that_are_public_are_known(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", NEVER)
def test_what_nobody_may_name_is_known_however_it_is_written(address: str) -> None:
    assert is_never_meant(address)
    assert not is_public(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.0.0.7", "fd12:3456::1", "8.8.8.8", "170.254.0.1"])
def test_what_an_operator_may_name_is_not_among_it(address: str) -> None:
    assert not is_never_meant(address)


@given(st.integers(min_value=0, max_value=0xFFFF))
def test_no_address_of_the_link_is_left_out(rest: int) -> None:
    assert is_never_meant(f"169.254.{rest >> 8}.{rest & 255}")
    assert is_never_meant(f"::ffff:a9fe:{rest:x}")
    assert is_never_meant(f"fe80::{rest:x}")


@pytest.mark.parametrize("spelt", SPELLINGS)
async def test_no_spelling_is_allowed_to_an_operator_who_names_it(spelt: str) -> None:
    with pytest.raises(EgressDenied, match="no request goes there"):
        await reachable(spelt, 80, frozenset({normal_host(spelt)}), resolve)


@pytest.mark.parametrize("address", NEVER)
async def test_no_name_is_allowed_that_leads_there_when_it_is_asked(address: str) -> None:
    for answers in ([address], ["10.0.0.7", address]):
        with pytest.raises(EgressDenied, match="no request goes there"):
            await reachable("server.internal", 443, frozenset({"server.internal"}), answering(*answers))


async def test_a_name_that_an_operator_allows_may_lead_into_their_own_network() -> None:
    allowed = frozenset({"server.internal"})
    assert await reachable("server.internal", 443, allowed, answering("10.0.0.7", "::1")) == ["10.0.0.7", "::1"]
    with pytest.raises(EgressDenied, match="not public"):
        await reachable("other.internal", 443, allowed, answering("10.0.0.7"))
