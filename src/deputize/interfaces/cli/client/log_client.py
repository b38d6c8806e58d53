"""Read a tenant's log from the gateway over connections that stay open: a whole log takes many small requests."""

import contextlib
import http.client
import threading
import time
from urllib.parse import quote, urlsplit

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.client.refusal import GatewayRefusal
from deputize.interfaces.cli.client.rest_client import (
    CONNECTION_ERRORS,
    TIMEOUT_SECONDS,
    GatewayClient,
    make_connection,
    make_unreachable_error,
    parse_response,
)

_BUSY_SLUGS = ("too-many-at-once", "rate-limited")
_MAX_BUSY_SECONDS = 60.0
_NOT_FOUND = 404


class LogClient:
    """Reads below `/log/TENANT/`. Each thread has a connection of its own."""

    def __init__(self, gateway: GatewayClient, tenant: str) -> None:
        self._gateway = gateway
        self._parts = urlsplit(gateway.url)
        self._base = f"{self._parts.path.rstrip('/')}/log/{quote(tenant, safe='')}/"
        self._local = threading.local()
        self._connections: list[http.client.HTTPConnection] = []

    def read(self, path: str) -> bytes | None:
        """Read one path; None if the gateway does not have it. Wait while it is busy."""
        give_up_at = time.monotonic() + _MAX_BUSY_SECONDS
        while True:
            try:
                return self._read_once(path)
            except GatewayRefusal as refusal:
                if refusal.slug not in _BUSY_SLUGS or time.monotonic() > give_up_at:
                    raise
                time.sleep(0.2)

    def close(self) -> None:
        """Close the connections of all threads."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.close()

    def _read_once(self, path: str) -> bytes | None:
        try:
            response, content = self._send(path)
        except CONNECTION_ERRORS:
            # The gateway closes connections that were idle, and when it restarts: a new one may work.
            self._local.connection = None
            try:
                response, content = self._send(path)
            except CONNECTION_ERRORS as error:
                raise make_unreachable_error(self._gateway.url, error) from None
        if response.status < 400:
            return content
        try:
            parse_response(response, content, self._gateway.url)
        except GatewayRefusal as refusal:
            if response.status == _NOT_FOUND and refusal.slug == "log-not-found":
                return None
            raise
        raise ConfigError(f"{self._gateway.url} does not answer like a Deputize gateway: check --url.")

    def _send(self, path: str) -> tuple[http.client.HTTPResponse, bytes]:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = make_connection(self._parts.scheme, self._parts.hostname or "", self._parts.port)
            connection.connect()
            connection.sock.settimeout(TIMEOUT_SECONDS)
            self._local.connection = connection
            self._connections.append(connection)
        connection.request("GET", self._base + path, headers={"Authorization": f"Bearer {self._gateway.token}"})
        response = connection.getresponse()
        return response, response.read()
