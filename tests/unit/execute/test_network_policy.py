"""A contract's network is a list of hosts and ports; a tool that is outside of it sends nothing."""

from typing import Any

import pytest

from deputize.core.errors import EgressDenied
from deputize.execute.network_policy import require_reachable
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("EXE-1")


@pytest.mark.parametrize(
    ("network", "url", "is_allowed"),
    [
        ({}, "http://10.0.0.1:9999", True),
        ({"allowed_domains": ["api.example.com"]}, "https://API.example.com./v1", True),
        ({"allowed_domains": ["api.example.com"]}, "https://api.example.com:8443", False),
        ({"allowed_domains": ["api.example.com"], "allowed_ports": [8443]}, "https://api.example.com:8443", True),
        ({"allowed_domains": ["api.example.com"]}, "https://example.com", False),
        ({"allowed_domains": ["api.example.com"]}, "https://api.example.com.evil.net", False),
        ({"allowed_domains": ["api.example.com"]}, "https://api.example.com@evil.net", False),
        ({"allowed_domains": ["*.example.com"]}, "https://api.example.com", True),
        ({"allowed_domains": ["*.example.com"]}, "https://example.com", False),
        ({"allowed_domains": ["*.example.com"]}, "https://evilexample.com", False),
        ({"allowed_ports": [443]}, "https://any.example", True),
        ({"allowed_ports": [443]}, "http://any.example", False),
        ({"deny_all_egress": True}, "https://api.example.com", False),
    ],
)
def test_a_tool_reaches_the_hosts_and_ports_that_its_contract_declares(
    network: dict[str, Any], url: str, is_allowed: bool
) -> None:
    contract = make_contract(network=network)
    if is_allowed:
        require_reachable(contract, url)
        return
    with pytest.raises(EgressDenied) as refused:
        require_reachable(contract, url)
    assert refused.value.nothing_happened
