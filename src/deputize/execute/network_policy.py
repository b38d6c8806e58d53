"""Check that a tool's contract lets it reach the host of its service, before anything is sent there."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from deputize.core.contract.contract import Contract, NetworkPolicy
from deputize.core.errors import EgressDenied
from deputize.execute.egress import normalize_host

PORTS = {"http": 80, "https": 443}


def require_reachable(contract: Contract, url: str) -> None:
    """Raise `EgressDenied` if the contract declares a network that the host and the port of a URL are not part of."""
    if not contract.limits_network:
        return
    parts, policy = urlsplit(url), contract.network
    host, port = normalize_host(parts.hostname or ""), parts.port or PORTS.get(parts.scheme)
    if policy.deny_all_egress or port not in policy.allowed_ports or not _is_allowed_host(policy, host):
        raise EgressDenied(
            f"the contract of {contract.full_name} {contract.version} does not let it reach {host}, port {port}",
            details={"host": host, "port": port, "field": "/network"},
            advice="If the host is right, register a version whose network allows it.",
            nothing_happened=True,
        )


def _is_allowed_host(policy: NetworkPolicy, host: str) -> bool:
    """Tell whether a host is listed; no list allows every host."""
    return not policy.allowed_domains or is_listed_host(policy.allowed_domains, host)


def is_listed_host(listed: Sequence[str], host: str) -> bool:
    """Tell whether a normalized host is listed, by its name or as a part of a listed `*.domain`."""
    domains = [normalize_host(each) for each in listed]
    return host in domains or any(each.startswith("*.") and host.endswith(each[1:]) for each in domains)
