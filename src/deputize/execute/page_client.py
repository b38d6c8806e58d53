"""Get pages of the web for the tools that come with the gateway: of hosts that the operator listed, and of no other.

Below is the egress client, which checks addresses. The tools get `PageClient.get` from the command line's
`builtin_tools.py` and nothing else, so what they may reach is decided here.
"""

import asyncio
from collections.abc import Mapping, Sequence

import httpx2

from deputize.core.contract.tools import FetchedPage
from deputize.core.errors import EgressDenied, ToolPrecondition, UpstreamTimeout, UpstreamUnavailable
from deputize.execute.egress import (
    MAX_REDIRECTS,
    MAX_URL_LENGTH,
    REDIRECTS,
    Egress,
    HostResolver,
    normalize_host,
    resolve_host,
)
from deputize.execute.network_policy import PORTS, is_listed_host


class ListedHosts:
    """The hosts of a setting, each a name or `*.domain`, with a port if it is not that of the scheme.

    `private_hosts` are names that may be private and without TLS; a name in `hosts` never is, because others decide to
    which address it leads.
    """

    def __init__(self, setting: str, hosts: Sequence[str], private_hosts: Sequence[str] = ()) -> None:
        self._setting = setting
        self._hosts = [_split(each) for each in hosts]
        self._private_hosts = [_split(each) for each in private_hosts]
        self.private_names = frozenset(name for name, _ in self._private_hosts)

    def require(self, url: str) -> tuple[str, bool]:
        """Return the host of a URL, and whether it may be private; raise `EgressDenied` if it is not listed."""
        scheme, host, port = read_target(url)
        for hosts, is_private in ((self._private_hosts, True), (self._hosts, False)):
            for name, listed_port in hosts:
                if port == (listed_port or PORTS[scheme]) and is_listed_host((name,), host):
                    return host, is_private
        # Without TLS, only a private one is reached.
        names = "hosts" if scheme == "https" else "private_hosts"
        raise EgressDenied(
            f"{host}, port {port}, is not one of the hosts whose pages may be read",
            details={"host": host, "port": port},
            advice=f"If the host is right, the operator must add it to {names} of {self._setting}.",
            nothing_happened=True,
        )


class PageClient:
    """A client for GET of listed hosts."""

    def __init__(
        self,
        hosts: Sequence[str],
        private_hosts: Sequence[str] = (),
        *,
        max_bytes: int,
        resolver: HostResolver = resolve_host,
    ) -> None:
        self._listed = ListedHosts("[builtin.web]", hosts, private_hosts)
        self._max_bytes = max_bytes
        self._resolve = resolver

    async def get(self, url: str, headers: Mapping[str, str], seconds: float) -> FetchedPage:
        """Get a page. Follow redirects at its own host: another host is for a call of its own, which rules decide.

        The connections are its own, so that nothing is left of them for the calls of others.
        """
        host, is_private = self._listed.require(url)
        egress = Egress(
            frozenset({host} if is_private else ()), max_bytes=self._max_bytes, seconds=seconds, resolver=self._resolve
        )
        try:
            async with asyncio.timeout(seconds):
                for _ in range(MAX_REDIRECTS + 1):
                    answer = await egress.exchange(
                        "GET", url, body=None, headers=headers, seconds=seconds, max_bytes=self._max_bytes
                    )
                    location = answer.headers.get("location")
                    if answer.status not in REDIRECTS or location is None:
                        return FetchedPage(url=url, status=answer.status, headers=answer.headers, body=answer.body)
                    url = self._follow(url, location)
        except TimeoutError as error:
            raise UpstreamTimeout(f"the host {host} took too long to answer") from error
        finally:
            await egress.aclose()
        raise UpstreamUnavailable(f"the host {host} redirects more than {MAX_REDIRECTS} times")

    def _follow(self, url: str, location: str) -> str:
        """Return where a redirect leads if that is at the same host."""
        try:
            target = str(httpx2.URL(url).join(location[:MAX_URL_LENGTH]))
        except (httpx2.InvalidURL, ValueError) as error:
            raise EgressDenied("the host redirects to an invalid URL") from error
        if read_target(target) == read_target(url):
            return target
        host, _ = self._listed.require(target)
        raise ToolPrecondition(
            f"the page redirects to {host}",
            details={"location": target},
            advice="If that is what you want, fetch the address in details.location.",
            nothing_happened=True,
        )


def _split(listed: str) -> tuple[str, int | None]:
    name, _, port = listed.partition(":")
    return name, int(port) if port else None


def read_target(text: str) -> tuple[str, str, int]:
    """Read scheme, host and port as the HTTP client will, or raise `EgressDenied`."""
    try:
        url = httpx2.URL(text)
    except (httpx2.InvalidURL, ValueError):
        url = httpx2.URL("")
    port = url.port or PORTS.get(url.scheme)
    if not url.host or port is None or url.scheme not in PORTS or url.userinfo:
        raise EgressDenied("the URL must be http or https, without a user name or password", nothing_happened=True)
    return url.scheme, normalize_host(url.raw_host.decode("ascii")), port
