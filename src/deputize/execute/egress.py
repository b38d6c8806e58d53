"""Send outgoing HTTP requests; every host is resolved, checked and pinned to an address before connecting.

All requests to URLs from outside go through here, such as issuers' key sets. The check is in the network layer below
the HTTP client, so neither a redirect nor a second DNS answer can bypass it; TLS and the Host header keep the name.
"""

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import h11
import httpcore2
import httpx2

from deputize.core.errors import EgressDenied, Problem, ResourceLimitExceeded, UpstreamTimeout, UpstreamUnavailable
from deputize.core.value_types import frozen
from deputize.execute.ip_filter import is_forbidden_address, is_public_address
from deputize.execute.network_stream import AnswerRefused, MeteredStream
from deputize.execute.upstreams.faults import UpstreamNotAtFault

HostResolver = Callable[[str, int], Awaitable[Sequence[str]]]
ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)

MAX_REDIRECTS = 3
MAX_URL_LENGTH = 2048
REDIRECTS = frozenset({301, 302, 303, 307, 308})


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Resolve a host with the system's resolver."""
    address_info = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in address_info]


async def resolve_allowed_addresses(
    host: str, port: int, allow_hosts: frozenset[str], resolver: HostResolver
) -> Sequence[str]:
    """Resolve a host and require that all its addresses are allowed. `allow_hosts` are normalized names."""
    try:
        addresses = list(dict.fromkeys(await resolver(host, port)))
    except (OSError, UnicodeError) as error:
        raise UpstreamUnavailable(f"the host {host} cannot be resolved") from error
    if not addresses:
        raise UpstreamUnavailable(f"the host {host} has no address")
    # One forbidden address rejects the host, because an answer that mixes both is an attack.
    if any(is_forbidden_address(address) for address in addresses):
        raise EgressDenied(
            f"the host {host} resolves to a link-local, multicast or unspecified address or to a cloud metadata "
            "service, which is never allowed",
            advice="No setting allows this. Use the host's real name or address.",
        )
    if normalize_host(host) not in allow_hosts and not all(is_public_address(address) for address in addresses):
        raise EgressDenied(
            f"the host {host} resolves to an address that is not public",
            advice="If this is the intended host, the operator must allow it by name.",
        )
    return addresses


class _PinnedNetwork(httpcore2.AsyncNetworkBackend):
    """A network backend that connects only to addresses it has just checked, by streams that bound what is read."""

    def __init__(self, allow_hosts: frozenset[str], resolver: HostResolver) -> None:
        self._allow_hosts = allow_hosts
        self._resolve = resolver

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        addresses = await resolve_allowed_addresses(host, port, self._allow_hosts, self._resolve)
        for address in addresses[:-1]:
            with contextlib.suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
                return await MeteredStream.open(address, port, timeout)
        return await MeteredStream.open(addresses[-1], port, timeout)

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        raise EgressDenied("connections to local sockets are not allowed")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _CheckedTransport(httpx2.AsyncBaseTransport):
    """An httpx transport over connections of the pinned network."""

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
        stream = answer.extensions["network_stream"]
        # After status 101, it is another stream, of which nothing is read.
        if isinstance(stream, MeteredStream):
            _expect_body(stream, request.method, answer)
        return httpx2.Response(
            answer.status, headers=answer.headers, stream=_Body(answer), extensions=answer.extensions
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


def _expect_body(stream: MeteredStream, method: str, answer: httpcore2.Response) -> None:
    """Tell the stream how the body is delimited, by the rules of the HTTP client (RFC 9112, 6.3)."""
    headers = {name.lower(): value for name, value in answer.headers}
    is_chunked, length = b"transfer-encoding" in headers, headers.get(b"content-length")
    if method == "HEAD" or answer.status in (204, 304):
        is_chunked, length = False, b"0"
    stream.expect_body(is_chunked=is_chunked, length=None if length is None else int(length))


class _Body(httpx2.AsyncByteStream):
    """The body of a response, as httpx reads it."""

    def __init__(self, answer: httpcore2.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._answer.aiter_stream():
            yield part

    async def aclose(self) -> None:
        await self._answer.aclose()


def normalize_host(host: str) -> str:
    """Normalize a host name for comparison: lower case, no trailing dot, no brackets."""
    return host.lower().rstrip(".").strip("[]")


@contextlib.contextmanager
def _translate_network_errors(host: str) -> Iterator[None]:
    """Translate network errors into Problems."""
    try:
        yield
    except (TimeoutError, httpcore2.TimeoutException) as error:
        raise UpstreamTimeout(f"the host {host} took too long to answer") from error
    except AnswerRefused as error:
        raise UpstreamUnavailable(f"the host {host} {error}") from error
    except (httpcore2.NetworkError, httpcore2.ProtocolError, httpx2.HTTPError, OSError) as error:
        raise UpstreamUnavailable(f"the host {host} cannot be reached or is not an HTTP server") from error
    except httpx2.InvalidURL as error:
        # The client reads the target of a redirect even though it does not follow it.
        raise UpstreamUnavailable(f"the host {host} answered with a redirect to an invalid URL") from error


@functools.cache
def _load_trusted_certificates() -> ssl.SSLContext:
    """Load the certificates once per process: parsing them takes longer than the rest of a client's start."""
    return httpx2.create_ssl_context(trust_env=False)


@frozen
class HttpAnswer:
    """The answer to a request. The names of headers are in lower case; `cookies` cannot be joined as others are."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    cookies: Sequence[str] = ()


class Egress:
    """A client for outgoing requests. `allow_hosts` are named by the operator; they may be private and without TLS."""

    def __init__(
        self,
        allow_hosts: frozenset[str] = frozenset(),
        *,
        max_bytes: int = 1_048_576,
        seconds: float = 5.0,
        max_connections: int = 100,
        resolver: HostResolver = resolve_host,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._allow_hosts = frozenset(normalize_host(host) for host in allow_hosts)
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._tls = tls or _load_trusted_certificates()
        self._resolve = resolver
        pool = httpcore2.AsyncConnectionPool(
            ssl_context=self._tls,
            max_connections=max_connections,
            max_keepalive_connections=20,
            keepalive_expiry=5.0,
            network_backend=_PinnedNetwork(self._allow_hosts, resolver),
        )
        # The environment is ignored, because a proxy named there would resolve hosts without these checks.
        self._client = httpx2.AsyncClient(
            transport=_CheckedTransport(pool),
            trust_env=False,
            follow_redirects=False,
            timeout=seconds,
            headers={"User-Agent": "deputize", "Accept-Encoding": "identity"},
        )

    async def get(self, url: str) -> bytes:
        """Fetch a URL and return its body, following redirects, within the limits of size and time."""
        target = self._parse_url(url)
        with _translate_network_errors(target.host):
            async with asyncio.timeout(self._seconds):
                for _ in range(MAX_REDIRECTS + 1):
                    answer = await self._get_once(target)
                    if isinstance(answer, bytes):
                        return answer
                    target = self._parse_url(str(answer))
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
        """Post a body and return the body of a 200 response.

        Redirects are not followed, because that would send the body to an unknown host.
        """
        self._require_small(body)
        target = self._parse_url(url)
        limit = self._seconds if seconds is None else seconds
        with _translate_network_errors(target.host):
            async with asyncio.timeout(limit):
                self._client.cookies.clear()
                stream = self._client.stream("POST", target, content=body, headers=headers, timeout=limit)
                async with stream as response:
                    return await self._read_success_body(target, response, max_bytes)

    async def send(self, url: str, body: bytes, *, headers: Mapping[str, str], seconds: float) -> int:
        """Post a body and return only the status; for deliveries whose response body does not matter."""
        self._require_small(body)
        target = self._parse_url(url)
        with _translate_network_errors(target.host):
            async with asyncio.timeout(seconds):
                self._client.cookies.clear()
                stream = self._client.stream("POST", target, content=body, headers=headers, timeout=seconds)
                async with stream as response:
                    return response.status_code

    async def request(
        self, method: str, url: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Send a request and return status and body of any response; redirects are returned, not followed."""
        self._require_small(body or b"")
        target = self._parse_url(url)
        with _translate_network_errors(target.host):
            async with asyncio.timeout(self._seconds):
                self._client.cookies.clear()
                async with self._client.stream(method, target, content=body, headers=headers) as response:
                    self._require_uncompressed(target, response)
                    return response.status_code, await self._read_body(response, self._max_bytes)

    async def exchange(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None,
        headers: Mapping[str, str],
        seconds: float,
        max_bytes: int,
    ) -> HttpAnswer:
        """Send a request and return the whole answer; redirects are returned, not followed.

        A problem from before the connection was open has `nothing_happened`.
        """
        target = self._parse_url(url)
        # The wait for a connection ends well before the call does: it must not look like a slow answer of the host.
        timeout = httpx2.Timeout(seconds, connect=min(seconds, self._seconds), pool=min(seconds / 2, self._seconds))
        request = self._client.build_request(method, target, content=body, headers=headers, timeout=timeout)
        with _translate_network_errors(target.host):
            async with asyncio.timeout(seconds):
                response = await self._connect_and_send(request)
                try:
                    self._require_uncompressed(target, response)
                    content = await self._read_body(response, max_bytes)
                finally:
                    await response.aclose()
        # Not `dict(headers)`, which searches the whole list for each name: a service could send thousands.
        received = response.headers
        return HttpAnswer(
            status=response.status_code,
            headers=dict(received.items()),
            body=content,
            cookies=received.get_list("set-cookie"),
        )

    async def _connect_and_send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return the head of the answer."""
        host = request.url.host
        try:
            return await self._client.send(request, stream=True)
        except Problem as problem:
            # Only the check of the host's addresses raises one, and it comes before the connection.
            raise problem.replace(nothing_happened=True) from problem.__cause__
        except httpcore2.PoolTimeout as error:
            raise UpstreamNotAtFault(f"too many calls to {host} are waiting", nothing_happened=True) from error
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
            raise UpstreamUnavailable(f"the host {host} cannot be reached", nothing_happened=True) from error
        except (httpcore2.LocalProtocolError, h11.LocalProtocolError) as error:
            # The second comes from the middle of the body, so a part of the request may have been sent.
            raise UpstreamNotAtFault(f"the request to {host} is not valid HTTP and was not sent whole") from error
        finally:
            # No cookie of one response goes into the next request.
            self._client.cookies.clear()

    async def dial(self, url: str, protocol: Callable[[], ProtocolT]) -> ProtocolT:
        """Open a connection to a URL's host with the same checks, for callers with their own HTTP client.

        MCP servers are called so often that the general client's time per request matters.
        """
        target = self._parse_url(url)
        secure = target.scheme == "https"
        tls, name = (self._tls, target.host) if secure else (None, None)
        port = target.port or (443 if secure else 80)
        loop = asyncio.get_running_loop()
        with _translate_network_errors(target.host):
            async with asyncio.timeout(self._seconds):
                addresses = await resolve_allowed_addresses(target.host, port, self._allow_hosts, self._resolve)
                for address in addresses[:-1]:
                    with contextlib.suppress(OSError):
                        return (await loop.create_connection(protocol, address, port, ssl=tls, server_hostname=name))[1]
                return (await loop.create_connection(protocol, addresses[-1], port, ssl=tls, server_hostname=name))[1]

    async def _get_once(self, target: httpx2.URL) -> bytes | httpx2.URL:
        # No cookie of one response goes into the next request.
        self._client.cookies.clear()
        async with self._client.stream("GET", target) as response:
            if response.status_code in REDIRECTS and "location" in response.headers:
                try:
                    return target.join(response.headers["location"])
                except httpx2.InvalidURL as error:
                    raise EgressDenied("the host redirects to an invalid URL") from error
            return await self._read_success_body(target, response, None)

    async def _read_success_body(self, target: httpx2.URL, response: httpx2.Response, max_bytes: int | None) -> bytes:
        if response.status_code != 200:
            raise UpstreamUnavailable(f"the host {target.host} answered with HTTP {response.status_code}")
        self._require_uncompressed(target, response)
        return await self._read_body(response, self._max_bytes if max_bytes is None else max_bytes)

    def _require_uncompressed(self, target: httpx2.URL, response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise UpstreamUnavailable(f"the host {target.host} sent a compressed response, which was not accepted")

    def _require_small(self, body: bytes) -> None:
        if len(body) > self._max_bytes:
            raise ResourceLimitExceeded(f"the request body is larger than {self._max_bytes} bytes")

    async def _read_body(self, response: httpx2.Response, max_bytes: int) -> bytes:
        body = bytearray()
        async for part in response.aiter_raw():
            body += part
            if len(body) > max_bytes:
                raise ResourceLimitExceeded(f"the response is larger than {max_bytes} bytes")
        return bytes(body)

    def _parse_url(self, text: str) -> httpx2.URL:
        try:
            url = httpx2.URL(text) if len(text) <= MAX_URL_LENGTH else None
        except (httpx2.InvalidURL, ValueError):
            url = None
        if url is None or not url.host or url.scheme not in ("http", "https") or url.userinfo:
            raise EgressDenied("the URL must be http or https, without a user name or password")
        if url.scheme == "http" and normalize_host(url.host) not in self._allow_hosts:
            raise EgressDenied(f"the host {url.host} may be reached over https only")
        return url

    async def aclose(self) -> None:
        await self._client.aclose()
