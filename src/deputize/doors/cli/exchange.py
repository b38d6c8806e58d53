"""One request to the gateway and its answer, with the standard library's client, which starts in no time.

Apart from `remote.py`, which every command imports, so that help does not pay for TLS.
"""

import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from deputize.core.mistakes import Misconfigured
from deputize.doors.cli.remote import Refused

_TIMEOUT_SECONDS = 330.0  # a little more than the longest a synchronous call may take
_CONNECT_SECONDS = 10.0
_NO_ANSWER = (OSError, http.client.HTTPException)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    value: Any
    headers: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gateway:
    """Where to ask and as whom."""

    url: str
    token: str = field(repr=False)

    def get(self, path: str, **query: str | int | list[str] | None) -> Any:
        asked = {name: value for name, value in query.items() if value not in (None, "", [])}
        return self.send("GET", f"{path}?{urlencode(asked, doseq=True)}" if asked else path).value

    def post(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        return self.send("POST", path, {} if body is None else body, headers)

    def form(self, path: str, fields: Mapping[str, str]) -> Any:
        """One form, as OAuth takes it."""
        media = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.send("POST", path, urlencode(fields).encode(), media).value

    def send(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One request; a problem is raised as `Refused`, silence as a sentence that says what to do."""
        with self._open(method, path, body, headers) as response:
            try:
                raw = response.read()
            except _NO_ANSWER as error:
                raise self._silence(error) from None
            return Answer(value=_value(response, raw, self.url), headers=dict(response.getheaders()))

    def events(self, path: str, after: str = "") -> Iterator[tuple[str, str, Any]]:
        """Server-sent events, each as its id, its name and its value, until the gateway ends the stream."""
        asked = {"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
        with self._open("GET", path, None, asked) as response:
            if response.status >= 400:
                _value(response, response.read(), self.url)
            known_by, name, data = "", "message", ""
            try:
                for line in response:
                    text = line.decode().rstrip("\r\n")
                    if text.startswith("id:"):
                        known_by = text[3:].strip()
                    elif text.startswith("event:"):
                        name = text[6:].strip()
                    elif text.startswith("data:"):
                        data += text[5:].strip()
                    elif not text and data:
                        yield known_by, name, json.loads(data)
                        name, data = "message", ""
            except _NO_ANSWER as error:
                raise self._silence(error) from None

    def lines(self, path: str, body: Any) -> Iterator[Any]:
        """What a long answer says line by line, each line one JSON value."""
        with self._open("POST", path, body, {"Accept": "application/x-ndjson"}) as response:
            if response.status >= 400:
                _value(response, response.read(), self.url)
            try:
                for line in response:
                    yield json.loads(line)
            except (*_NO_ANSWER, ValueError) as error:
                raise self._silence(error) from None

    @contextlib.contextmanager
    def _open(
        self, method: str, path: str, body: Any, headers: Mapping[str, str] | None
    ) -> Iterator[http.client.HTTPResponse]:
        place = urlsplit(self.url)
        connection = _connection(place.scheme, place.hostname or "", place.port)
        sent = {"Authorization": f"Bearer {self.token}", "Accept": "application/json", **(headers or {})}
        data = None
        if isinstance(body, bytes):
            data = body
        elif body is not None:
            data = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        try:
            try:
                connection.connect()
                if connection.sock is not None:
                    connection.sock.settimeout(_TIMEOUT_SECONDS)
                connection.request(method, place.path.rstrip("/") + path, data, sent)
                response = connection.getresponse()
            except _NO_ANSWER as error:
                raise self._silence(error) from None
            yield response
        finally:
            connection.close()

    def _silence(self, error: Exception) -> Misconfigured:
        if isinstance(error, ConnectionRefusedError):
            why = "nothing listens there"
        elif isinstance(error, TimeoutError):
            why = "it did not answer in time"
        else:
            why = (str(getattr(error, "strerror", None) or error) or type(error).__name__).lower()
        return Misconfigured(
            f"The gateway at {self.url} cannot be reached ({why}): start it with deputize dev, or set --url."
        )


def _connection(scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
    if scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=_CONNECT_SECONDS, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, port, timeout=_CONNECT_SECONDS)


def _value(response: http.client.HTTPResponse, raw: bytes, url: str) -> Any:
    try:
        value = json.loads(raw) if raw else None
    except ValueError:
        value = None
    if response.status < 400 and (value is not None or not raw):
        return value
    if isinstance(value, dict) and "error" in value:
        # OAuth has its own form for refusals; the problem inside is the one people read everywhere else.
        raise Refused(value.get("problem", value))
    raise Misconfigured(
        f"What answers at {url} is no Deputize gateway (HTTP {response.status}, no problem document): check --url."
    )
