"""Which client a request counts for: the connection's, or the one that a reverse proxy names."""

import pytest

from deputize.interfaces.connections import find_client

PROXIES = ("10.1.0.0/16", "2001:db8:1::5/128")


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.7", ["198.51.100.1"], "192.0.2.7"),
        ("10.1.0.9", [], "10.1.0.9"),
        ("10.1.0.9", ["198.51.100.1, 203.0.113.4"], "203.0.113.4"),
        ("10.1.0.9", ["203.0.113.4", "10.1.2.3"], "203.0.113.4"),
        ("::ffff:10.1.0.9", ["203.0.113.4:50123"], "203.0.113.4"),
        ("2001:db8:1::5", ["[2001:db8:2::ffff:7]:443"], "2001:db8:2::"),
        ("2001:db8:1::6", ["203.0.113.4"], "2001:db8:1::"),
        ("10.1.0.9", ["203.0.113.4, unknown"], "10.1.0.9"),
        (None, ["203.0.113.4"], ""),
    ],
    ids=[
        "no-proxy", "no-header", "what-the-client-sent-itself", "two-proxies", "port", "ipv6", "neighbour-of-a-proxy",
        "no-address", "unix-socket",
    ],
)  # fmt: skip
def test_only_addresses_that_reverse_proxies_append_are_believed(
    peer: str | None, forwarded: list[str], client: str
) -> None:
    headers = [(b"x-forwarded-for", each.encode()) for each in forwarded]
    scope = {"client": None if peer is None else (peer, 443), "headers": headers}
    assert find_client(scope, PROXIES) == client
