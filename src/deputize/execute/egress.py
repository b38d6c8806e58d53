"""The one way out to the network: every address is resolved, checked and pinned where the connection is made.

Key sets of issuers come through here, and whatever else a URL from outside could steer. The check sits in the
network layer below the HTTP client, so neither a redirect nor a second DNS answer can lead around it; the
name stays in place for TLS and the Host header.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import httpcore2
import httpx2

from deputize.core.errors import EgressDenied, ResourceLimit, UpstreamTimeout, UpstreamUnavailable
from deputize.execute.addresses import is_never_meant, is_public

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Spoken = TypeVar("Spoken", bound=asyncio.Protocol)

MAX_REDIRECTS = 3
MAX_URL_LENGTH = 2048
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


async def resolve(host: str, port: int) -> Sequence[str]:
    """What the system's resolver says."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


async def reachable(host: str, port: int, allow_hosts: frozenset[str], resolver: Resolve) -> Sequence[str]:
    """The addresses a name leads to, once each of them may be reached. `allow_hosts` are normal names."""
    try:
        addresses = list(dict.fromkeys(await resolver(host, port)))
    except (OSError, UnicodeError) as error:
        raise UpstreamUnavailable(f"the host {host} cannot be found") from error
    if not addresses:
        raise UpstreamUnavailable(f"the host {host} has no address")
    # One address that may not be reached refuses the name: an answer that mixes both is made to deceive.
    if any(is_never_meant(address) for address in addresses):
        raise EgressDenied(
            f"the host {host} leads to where machines are told about themselves and their keys (a link-local "
            "address or a cloud's metadata service), to everybody or to nobody; no request goes there",
            advice="Nothing allows this. Name the host that is meant by its own address.",
        )
    if normal_host(host) not in allow_hosts and not all(is_public(address) for address in addresses):
        raise EgressDenied(
            f"the host {host} leads to an address that is not public",
            advice="If this host is meant, whoever runs this gateway must allow it by name.",
        )
    return addresses


class _PinnedNetwork(httpcore2.AsyncNetworkBackend):
    """Connects only to addresses it has checked itself, in the same breath."""

    def __init__(self, allow_hosts: frozenset[str], resolver: Resolve) -> None:
        self._allow_hosts = allow_hosts
        self._resolve = resolver
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        addresses = await reachable(host, port, self._allow_hosts, self._resolve)
        for address in addresses[:-1]:
            with contextlib.suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
        return await self._network.connect_tcp(addresses[-1], port, timeout, local_address, socket_options)

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        raise EgressDenied("there is no way out through a local socket")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _CheckedTransport(httpx2.AsyncBaseTransport):
    """Carries httpx requests over connections of the pinned network."""

    def __init__(self, pool: httpcore2.AsyncConnectionPool) -> None:
        self._pool = pool

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        answer = await self._pool.handle_async_request(
            httpcore2.Request(
                method=request.method,
                url=httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx2.Response(
            answer.status, headers=answer.headers, stream=_Body(answer), extensions=answer.extensions
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, answer: httpcore2.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._answer.aiter_stream():
            yield part

    async def aclose(self) -> None:
        await self._answer.aclose()


def normal_host(host: str) -> str:
    return host.lower().rstrip(".").strip("[]")


@contextlib.contextmanager
def _network_problems(host: str) -> Iterator[None]:
    """What the network did, in our words."""
    try:
        yield
    except (TimeoutError, httpcore2.TimeoutException) as error:
        raise UpstreamTimeout(f"the host {host} took too long to answer") from error
    except (httpcore2.NetworkError, httpcore2.ProtocolError, httpx2.HTTPError, OSError) as error:
        raise UpstreamUnavailable(f"the host {host} cannot be reached or does not speak HTTP") from error


class Egress:
    """`allow_hosts` are names the operator wrote down: they may be private and spoken to without TLS."""

    def __init__(
        self,
        allow_hosts: frozenset[str] = frozenset(),
        *,
        max_bytes: int = 1_048_576,
        seconds: float = 5.0,
        resolver: Resolve = resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._allow_hosts = frozenset(normal_host(host) for host in allow_hosts)
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._tls = tls or httpx2.create_ssl_context(trust_env=False)
        self._resolve = resolver
        pool = httpcore2.AsyncConnectionPool(
            ssl_context=self._tls,
            max_connections=100,
            max_keepalive_connections=20,
            keepalive_expiry=5.0,
            network_backend=_PinnedNetwork(self._allow_hosts, resolver),
        )
        # No environment: a proxy named there would resolve names where nobody checks them.
        self._client = httpx2.AsyncClient(
            transport=_CheckedTransport(pool),
            trust_env=False,
            follow_redirects=False,
            timeout=seconds,
            headers={"User-Agent": "deputize", "Accept-Encoding": "identity"},
        )

    async def get(self, url: str) -> bytes:
        """The body behind a URL, within the limits of size and time, redirects included."""
        target = self._checked_url(url)
        with _network_problems(target.host):
            async with asyncio.timeout(self._seconds):
                for _ in range(MAX_REDIRECTS + 1):
                    answer = await self._get_once(target)
                    if isinstance(answer, bytes):
                        return answer
                    target = self._checked_url(str(answer))
        raise UpstreamUnavailable(f"the host {target.host} redirects more than {MAX_REDIRECTS} times")

    async def post(
        self,
        url: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
        max_bytes: int | None = None,
    ) -> bytes:
        """The answer to a body that was sent. Only a 200 is one, and a redirect is not: it would carry the body on to
        somebody nobody named.
        """
        if len(body) > self._max_bytes:
            raise ResourceLimit(f"a body of more than {self._max_bytes} bytes is not sent")
        target = self._checked_url(url)
        limit = self._seconds if seconds is None else seconds
        with _network_problems(target.host):
            async with asyncio.timeout(limit):
                self._client.cookies.clear()
                sent = self._client.stream("POST", target, content=body, headers=headers, timeout=limit)
                async with sent as response:
                    return await self._answered(target, response, max_bytes)

    async def send(self, url: str, body: bytes, *, headers: Mapping[str, str], seconds: float) -> int:
        """The status a receiver answered with, whatever else it says; for what is told and not asked."""
        if len(body) > self._max_bytes:
            raise ResourceLimit(f"a body of more than {self._max_bytes} bytes is not sent")
        target = self._checked_url(url)
        with _network_problems(target.host):
            async with asyncio.timeout(seconds):
                self._client.cookies.clear()
                sent = self._client.stream("POST", target, content=body, headers=headers, timeout=seconds)
                async with sent as response:
                    return response.status_code

    async def ask(
        self, method: str, url: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body of whatever is answered. A redirect is an answer: it is not followed."""
        if body is not None and len(body) > self._max_bytes:
            raise ResourceLimit(f"a body of more than {self._max_bytes} bytes is not sent")
        target = self._checked_url(url)
        with _network_problems(target.host):
            async with asyncio.timeout(self._seconds):
                self._client.cookies.clear()
                async with self._client.stream(method, target, content=body, headers=headers) as response:
                    self._require_plain(target, response)
                    return response.status_code, await self._limited(response, self._max_bytes)

    async def dial(self, url: str, protocol: Callable[[], Spoken]) -> Spoken:
        """A connection of one's own to where a URL leads, under the same checks as every other; for whoever asks the
        same host so often that the general client's time per request counts.
        """
        target = self._checked_url(url)
        secure = target.scheme == "https"
        tls, name = (self._tls, target.host) if secure else (None, None)
        port = target.port or (443 if secure else 80)
        loop = asyncio.get_running_loop()
        with _network_problems(target.host):
            async with asyncio.timeout(self._seconds):
                addresses = await reachable(target.host, port, self._allow_hosts, self._resolve)
                for address in addresses[:-1]:
                    with contextlib.suppress(OSError):
                        return (await loop.create_connection(protocol, address, port, ssl=tls, server_hostname=name))[1]
                return (await loop.create_connection(protocol, addresses[-1], port, ssl=tls, server_hostname=name))[1]

    async def _get_once(self, target: httpx2.URL) -> bytes | httpx2.URL:
        # Nothing of one answer goes into the next request.
        self._client.cookies.clear()
        async with self._client.stream("GET", target) as response:
            if response.status_code in _REDIRECTS and "location" in response.headers:
                try:
                    return target.join(response.headers["location"])
                except httpx2.InvalidURL as error:
                    raise EgressDenied("the host redirects to something that is no URL") from error
            return await self._answered(target, response, None)

    async def _answered(self, target: httpx2.URL, response: httpx2.Response, max_bytes: int | None) -> bytes:
        if response.status_code != 200:
            raise UpstreamUnavailable(f"the host {target.host} answered {response.status_code}")
        self._require_plain(target, response)
        return await self._limited(response, self._max_bytes if max_bytes is None else max_bytes)

    def _require_plain(self, target: httpx2.URL, response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise UpstreamUnavailable(f"the host {target.host} answered compressed without being asked")

    async def _limited(self, response: httpx2.Response, max_bytes: int) -> bytes:
        body = bytearray()
        async for part in response.aiter_raw():
            body += part
            if len(body) > max_bytes:
                raise ResourceLimit(f"the answer is larger than {max_bytes} bytes")
        return bytes(body)

    def _checked_url(self, text: str) -> httpx2.URL:
        try:
            url = httpx2.URL(text) if len(text) <= MAX_URL_LENGTH else None
        except (httpx2.InvalidURL, ValueError):
            url = None
        if url is None or not url.host or url.scheme not in ("http", "https") or url.userinfo:
            raise EgressDenied("only plain http and https URLs without a password in them can be fetched")
        if url.scheme == "http" and normal_host(url.host) not in self._allow_hosts:
            raise EgressDenied(f"the host {url.host} may be spoken to over https only")
        return url

    async def aclose(self) -> None:
        await self._client.aclose()
