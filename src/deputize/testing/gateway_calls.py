"""Call tools at a gateway over HTTP, as any caller does, and read the contract that it shows.

Requests are built as JSON text, because some cases are JSON that no encoder writes.
"""

import http.client
import json
import ssl
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from deputize.core.config_error import ConfigError
from deputize.core.contract.contract import Contract

_SECONDS: Final = 60.0
_MAX_WAIT_SECONDS: Final = 300.0
_MAX_RATE_LIMIT_WAITS: Final = 20
_MAX_PAUSE_SECONDS: Final = 5.0
# The gateway does not show where a tool runs.
_HIDDEN_HANDLER: Final = {"driver": "python", "target": "hidden:hidden"}


@dataclass(frozen=True, kw_only=True, slots=True)
class CallAnswer:
    """The gateway's answer to a call."""

    status: int
    document: Mapping[str, Any]

    @property
    def slug(self) -> str:
        """The stable name of the error; empty if there is none."""
        return str((self.document.get("error") or {}).get("slug", ""))

    @property
    def message(self) -> str:
        error = self.document.get("error") or {}
        return str(error.get("message") or self.document.get("detail") or f"HTTP {self.status}")

    @property
    def violates_error_schema(self) -> bool:
        """True if the tool failed with an error that its contract does not allow, and the gateway withheld its text."""
        details = (self.document.get("error") or {}).get("details") or {}
        return isinstance(details, dict) and details.get("violates") == "error_schema"

    @property
    def call_id(self) -> str | None:
        call_id = self.document.get("call_id")
        return call_id if isinstance(call_id, str) else None

    @property
    def is_completed(self) -> bool:
        return self.status == 200 and not self.document.get("error") and not self.is_pending

    @property
    def is_pending(self) -> bool:
        return "poll_after_ms" in self.document

    @property
    def needs_approval(self) -> bool:
        return bool(self.document.get("approval")) and not self.is_completed

    @property
    def result(self) -> Any:
        return self.document.get("result")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownTool:
    """A version of a tool as a gateway shows it."""

    contract: Contract
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewayCaller:
    """The gateway that the calls of a test go to. `session` groups them in its list of calls."""

    url: str
    token: str = field(repr=False)
    session: str = field(default_factory=lambda: f"contract-test-{uuid.uuid4()}")

    def show_tool(self, name: str, version: str | None = None) -> ShownTool:
        """Load the contract of a tool; raise `ConfigError` with the gateway's reason if it shows none."""
        query = f"?{urlencode({'version': version})}" if version else ""
        answer = self._send("GET", f"/v1/tools/{quote(name, safe='')}{query}")
        if answer.status != 200:
            raise ConfigError(f"{self.url} does not show {name}: {answer.message}")
        try:
            contract = Contract.model_validate({**answer.document["contract"], "handler": _HIDDEN_HANDLER})
            return ShownTool(contract=contract, digest=str(answer.document["digest"]))
        except (KeyError, TypeError, ValueError):
            raise ConfigError(
                f"{self.url} shows a contract that this release cannot read: use the release that the gateway runs."
            ) from None

    def call(self, tool: str, version: str | None, arguments_json: str, *, key: str | None = None) -> CallAnswer:
        """Call a tool and wait for its end; a call that waits for approval is canceled, and its answer returned."""
        head = json.dumps({"tool": tool, "session": self.session} | ({"version": version} if version else {}))
        body = f'{head[:-1]}, "arguments": {arguments_json}}}'.encode("utf-8", "surrogatepass")
        headers = {"Content-Type": "application/json", "Idempotency-Key": key or str(uuid.uuid4())}
        answer = self._send("POST", "/v1/calls", body, headers)
        for _ in range(_MAX_RATE_LIMIT_WAITS):
            pause = _read_pause(answer)
            if pause is None:
                break
            time.sleep(pause)
            answer = self._send("POST", "/v1/calls", body, headers)
        if answer.needs_approval and answer.call_id:
            self._send("POST", f"/v1/calls/{answer.call_id}/cancel", b"{}", {"Content-Type": "application/json"})
            return answer
        return self._wait_for_end(answer)

    def call_without_token(self, tool: str, arguments_json: str) -> CallAnswer:
        """Send a call that names no caller."""
        body = f'{{"tool": {json.dumps(tool)}, "arguments": {arguments_json}}}'.encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": str(uuid.uuid4()), "Authorization": ""}
        return self._send("POST", "/v1/calls", body, headers)

    def show_call(self, call_id: str) -> CallAnswer:
        """Load a stored call."""
        return self._send("GET", f"/v1/calls/{quote(call_id, safe='')}")

    def record_report(self, name: str, version: str, report: Mapping[str, Any]) -> CallAnswer:
        """Send the report of a test to the registry, which checks and signs it."""
        path = f"/v1/tools/{quote(name, safe='')}/versions/{quote(version, safe='')}/tests"
        return self._send("POST", path, json.dumps({"report": report}).encode(), {"Content-Type": "application/json"})

    def _wait_for_end(self, answer: CallAnswer) -> CallAnswer:
        deadline = time.monotonic() + _MAX_WAIT_SECONDS
        while answer.is_pending and answer.call_id and time.monotonic() < deadline:
            time.sleep(min(_MAX_PAUSE_SECONDS, float(answer.document["poll_after_ms"]) / 1000))
            answer = self.show_call(answer.call_id)
        return answer

    def _send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> CallAnswer:
        parts = urlsplit(self.url)
        connection = (
            http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=_SECONDS, context=ssl.create_default_context()
            )
            if parts.scheme == "https"
            else http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_SECONDS)
        )
        sent_headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/json", **(headers or {})}
        try:
            connection.request(method, parts.path.rstrip("/").removesuffix("/v1") + path, body, sent_headers)
            response = connection.getresponse()
            raw, status = response.read(), response.status
            document = json.loads(raw) if raw else {}
        except (OSError, http.client.HTTPException) as error:
            raise ConfigError(f"The gateway at {self.url} cannot be reached ({error}): check that it runs.") from None
        except ValueError:
            raise ConfigError(f"{self.url} does not answer like a Deputize gateway: check the URL.") from None
        finally:
            connection.close()
        return CallAnswer(status=status, document=document if isinstance(document, dict) else {"result": document})


def _read_pause(answer: CallAnswer) -> float | None:
    """Read how long to wait before a call that was refused only for its rate is sent again."""
    if answer.slug not in ("rate-limited", "too-many-at-once", "unavailable"):
        return None
    error = answer.document.get("error") or {}
    return min(_MAX_PAUSE_SECONDS, float(error.get("retry_after_ms") or 1000) / 1000)
