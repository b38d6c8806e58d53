"""Judge which connections were forbidden, with rules of the proof's own: nothing here is taken from the product."""

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proofs.kit.report import Figure

OPERATOR_ADDRESS = "10.77.0.1"
"""The one private address that the operator named, under one name. A hostile URL never leads there."""
RESULT_FILE = "result.json"
HARMLESS = "harmless"
"""The kind of the one attempt at each place that is not hostile."""
PUBLIC_ADDRESS = "93.184.215.14"
READING_METHODS = ("GET", "HEAD")
# The special-purpose registries of IANA; in IPv6, everything outside 2000::/3 is special, too.
_SPECIAL_NETWORKS = tuple(
    ipaddress.ip_network(each)
    for each in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/4", "240.0.0.0/4", "2001::/32", "2001:db8::/32", "2002::/16", "3fff::/20",
    )
)  # fmt: skip
# Public by its number, and still the machine's own platform: the agent endpoint of one cloud.
_PLATFORM_ADDRESSES = frozenset({ipaddress.ip_address("168.63.129.16")})
_GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of one case at one place: its outcome, and the addresses that were connected to.

    `is_connecting` says that the place connects to the URLs it gets, if nothing forbids that. `methods` are those of
    the requests that arrived at sites of the proof.
    """

    place: str
    kind: str
    case: str
    outcome: str
    addresses: tuple[str, ...]
    seconds: float
    is_connecting: bool = True
    methods: tuple[str, ...] = ()


def is_forbidden(address: str) -> bool:
    """Tell whether no place may connect to an address: it is neither public nor the operator's."""
    if address == OPERATOR_ADDRESS:
        return False
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if parsed in _PLATFORM_ADDRESSES or any(
        parsed in each for each in _SPECIAL_NETWORKS if each.version == parsed.version
    ):
        return True
    if isinstance(parsed, ipaddress.IPv4Address):
        return False
    return parsed not in _GLOBAL_IPV6 or int(parsed) >> 32 & 0xFFFF_FFFF in _ISATAP


def list_forbidden(attempts: Iterable[Attempt]) -> list[Attempt]:
    """List the attempts that led to a forbidden connection."""
    return [each for each in attempts if any(is_forbidden(address) for address in each.addresses)]


def compute_figures(attempts: Sequence[Attempt], uncovered_code: Sequence[str]) -> dict[str, Figure]:
    """Compute the figures of what was tried."""
    hostile = [each for each in attempts if each.kind != HARMLESS]
    of_web = [each for each in hostile if each.place.startswith("web.")]
    return {
        "hostile_cases": len({(each.kind, each.case) for each in hostile}),
        "kinds": len({each.kind for each in hostile}),
        "places": len({each.place for each in hostile}),
        "attempts": len(hostile),
        "web_cases": len({(each.place, each.kind, each.case) for each in of_web}),
        "web_requests_that_only_read": sum(each in READING_METHODS for attempt in of_web for each in attempt.methods),
        "web_requests_that_change": sum(each not in READING_METHODS for attempt in of_web for each in attempt.methods),
        "forbidden_connections": sum(is_forbidden(address) for each in attempts for address in each.addresses),
        "allowed_connections": sum(not is_forbidden(address) for each in attempts for address in each.addresses),
        "uncovered_code": len(uncovered_code),
        "places_that_connect_to_nothing": len(list_idle_places(attempts)),
        "unexpected_errors": sum(each.outcome.startswith("error ") for each in attempts),
        "longest_attempt_seconds": round(max((each.seconds for each in attempts), default=0.0), 2),
    }


def list_idle_places(attempts: Sequence[Attempt]) -> list[str]:
    """List the places that connect to nothing although a harmless URL was given to them: nothing is shown there."""
    connected = {each.place for each in attempts if each.kind == HARMLESS and each.addresses}
    return sorted({each.place for each in attempts if each.is_connecting} - connected)


def list_blind_places(attempts: Sequence[Attempt]) -> list[str]:
    """List the places that led to no forbidden connection in a variant that must have them everywhere."""
    caught = {each.place for each in list_forbidden(attempts)}
    return sorted({each.place for each in attempts if each.is_connecting} - caught)
