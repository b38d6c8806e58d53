"""Send requests to the gateway with the standard library's HTTP client, which loads quickly.

Separate from `target.py`, which every command imports, so that `--help` does not load TLS.
"""

import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.client.refusal import GatewayRefusal

TIMEOUT_SECONDS = 330.0  # a little more than the longest a synchronous call may take
_CONNECT_SECONDS = 10.0
_CHUNK_BYTES = 65_536
CONNECTION_ERRORS = (OSError, http.client.HTTPException)


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewayResponse:
    """JSON value and headers of a response."""

    value: Any
    headers: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewayClient:
    """Client of one gateway, with one token."""

    url: str
    token: str = field(repr=False)

    def get(self, path: str, **query: str | int | list[str] | None) -> Any:
        """Get a value; empty query parameters are left out."""
        parameters = {name: value for name, value in query.items() if value not in (None, "", [])}
        return self.send("GET", f"{path}?{urlencode(parameters, doseq=True)}" if parameters else path).value

    def post(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> GatewayResponse:
        """Post a JSON body."""
        return self.send("POST", path, {} if body is None else body, headers)

    def post_form(self, path: str, fields: Mapping[str, str]) -> Any:
        """Post a form, as OAuth endpoints expect."""
        form_headers = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.send("POST", path, urlencode(fields).encode(), form_headers).value

    def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> GatewayResponse:
        """Send a request; raise `GatewayRefusal` for a problem, `ConfigError` if the gateway cannot be reached."""
        with self._open(method, path, body, headers) as response:
            try:
                raw = response.read()
            except CONNECTION_ERRORS as error:
                raise make_unreachable_error(self.url, error) from None
            return GatewayResponse(value=parse_response(response, raw, self.url), headers=dict(response.getheaders()))

    def stream_events(self, path: str, after: str = "") -> Iterator[tuple[str, str, Any]]:
        """Yield server-sent events as id, name and value, until the gateway ends the stream."""
        request_headers = {"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
        with self._open("GET", path, None, request_headers) as response:
            if response.status >= 400:
                parse_response(response, response.read(), self.url)
            event_id, name, data = "", "message", ""
            try:
                for line in response:
                    text = line.decode().rstrip("\r\n")
                    if text.startswith("id:"):
                        event_id = text[3:].strip()
                    elif text.startswith("event:"):
                        name = text[6:].strip()
                    elif text.startswith("data:"):
                        data += text[5:].strip()
                    elif not text and data:
                        yield event_id, name, json.loads(data)
                        name, data = "message", ""
            except CONNECTION_ERRORS as error:
                raise make_unreachable_error(self.url, error) from None

    def stream_bytes(self, path: str, **query: str) -> Iterator[bytes]:
        """Get a response piece by piece; raise `ConfigError` if it breaks off."""
        with self._open("GET", f"{path}?{urlencode(query)}", None, {"Accept": "*/*"}) as response:
            if response.status >= 400:
                parse_response(response, response.read(), self.url)
            try:
                while chunk := response.read(_CHUNK_BYTES):
                    yield chunk
            except CONNECTION_ERRORS as error:
                raise make_unreachable_error(self.url, error) from None

    def stream_lines(self, path: str, body: Any) -> Iterator[Any]:
        """Post a JSON body, and yield the JSON value on each line of the response."""
        with self._open("POST", path, body, {"Accept": "application/x-ndjson"}) as response:
            if response.status >= 400:
                parse_response(response, response.read(), self.url)
            try:
                for line in response:
                    yield json.loads(line)
            except (*CONNECTION_ERRORS, ValueError) as error:
                raise make_unreachable_error(self.url, error) from None

    @contextlib.contextmanager
    def _open(
        self, method: str, path: str, body: Any, headers: Mapping[str, str] | None
    ) -> Iterator[http.client.HTTPResponse]:
        url_parts = urlsplit(self.url)
        connection = make_connection(url_parts.scheme, url_parts.hostname or "", url_parts.port)
        request_headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/json", **(headers or {})}
        data = None
        if isinstance(body, bytes):
            data = body
        elif body is not None:
            data = json.dumps(body).encode()
            request_headers["Content-Type"] = "application/json"
        try:
            try:
                connection.connect()
                if connection.sock is not None:
                    connection.sock.settimeout(TIMEOUT_SECONDS)
                connection.request(method, url_parts.path.rstrip("/") + path, data, request_headers)
                response = connection.getresponse()
            except CONNECTION_ERRORS as error:
                raise make_unreachable_error(self.url, error) from None
            yield response
        finally:
            connection.close()


def make_unreachable_error(url: str, error: Exception) -> ConfigError:
    """Make the error for a gateway that cannot be reached, with the reason."""
    if isinstance(error, ConnectionRefusedError):
        reason = "nothing listens there"
    elif isinstance(error, TimeoutError):
        reason = "it did not answer in time"
    else:
        reason = (str(getattr(error, "strerror", None) or error) or type(error).__name__).lower()
    return ConfigError(f"The gateway at {url} cannot be reached ({reason}): start it with deputize dev, or set --url.")


def make_connection(scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
    """Make a connection that is not open yet."""
    if scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=_CONNECT_SECONDS, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, port, timeout=_CONNECT_SECONDS)


def parse_response(response: http.client.HTTPResponse, raw: bytes, url: str) -> Any:
    """Parse the JSON of a response; raise `GatewayRefusal` for a problem."""
    try:
        value = json.loads(raw) if raw else None
    except ValueError:
        value = None
    if response.status < 400 and (value is not None or not raw):
        return value
    if isinstance(value, dict) and "error" in value:
        # OAuth defines its own form of errors; the problem document is inside it.
        raise GatewayRefusal(value.get("problem", value))
    raise ConfigError(
        f"{url} does not answer like a Deputize gateway (HTTP {response.status}, no problem document): check --url."
    )
