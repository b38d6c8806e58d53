"""Runs that are begun all the time, and approval requests that wait: what is open while processes are replaced."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from proofs.approvals.identities import FRESH_SECONDS, ONCALL, Identities
from proofs.kit.http_client import HttpConnection, HttpResponse

POLICIES: Final = f"""
@id("open")
permit (principal, action, resource) unless {{ resource == Tool::"effects.book" }};

@id("booking-asks")
@decision("ask")
@approvers("{ONCALL}")
permit (principal, action, resource == Tool::"effects.book");
"""
SETTINGS: Final = f"""
[approvals]
groups = ["{ONCALL}"]
fresh_seconds = {FRESH_SECONDS}
"""
_RUN_MILLISECONDS = 2000
_SECONDS_BETWEEN_RUNS = 0.2


@dataclass(kw_only=True, slots=True)
class OpenWork:
    """What was begun through the balancer. Nothing is asked twice, so each failure counts."""

    url: str
    people: Identities
    runs: dict[str, str] = field(default_factory=dict)
    """The call of each run, by its label."""
    approvals: dict[str, str] = field(default_factory=dict)
    """The call of each approval request, by its label."""
    undecided: dict[str, str] = field(default_factory=dict)
    """The approval requests that nobody has decided yet, by their labels."""
    failures: Counter[str] = field(default_factory=Counter)

    @asynccontextmanager
    async def begin_runs(self) -> AsyncIterator[None]:
        """Begin a run again and again until the block ends."""
        stop = asyncio.Event()

        async def begin() -> None:
            for number in itertools.count():
                if stop.is_set():
                    return
                label = f"run-{number}"
                arguments = {"label": label, "delay_ms": _RUN_MILLISECONDS}
                reply = await self._call("effects.issue", arguments, mode="async")
                if reply is not None:
                    self.runs[label] = reply["call_id"]
                await asyncio.sleep(_SECONDS_BETWEEN_RUNS)

        async with asyncio.TaskGroup() as group:
            group.create_task(begin())
            try:
                yield
            finally:
                stop.set()

    async def request_approvals(self, name: str, count: int) -> None:
        """Make calls that wait for a person."""
        for number in range(count):
            label = f"{name}-{number}"
            reply = await self._call("effects.book", {"label": label})
            if reply is not None:
                self.approvals[label] = reply["call_id"]
                self.undecided[label] = reply["approval"]["approval_id"]

    async def approve(self, labels: Iterable[str]) -> None:
        """Approve requests as a person does who read them."""
        token = self.people.issue_person_token("bea")
        for label in labels:
            path = f"/v1/approvals/{self.undecided.pop(label)}"
            shown = await self._send("GET", path, token)
            if shown is not None:
                await self._send("POST", f"{path}/approve", token, {"binding": shown["binding"], "reason": "fine"})

    async def _call(self, tool: str, arguments: dict[str, Any], **fields: str) -> dict[str, Any] | None:
        body = {"tool": tool, "arguments": arguments, **fields}
        return await self._send(
            "POST", "/v1/calls", self.people.issue_caller_token("ann"), body, idempotency_key=arguments["label"]
        )

    async def _send(
        self, method: str, path: str, token: str, body: dict[str, Any] | None = None, **headers: str
    ) -> dict[str, Any] | None:
        http = HttpConnection.for_url(self.url, token=token)
        try:
            answer: HttpResponse = await http.get(path) if method == "GET" else await http.post(path, body, **headers)
        except (OSError, EOFError) as error:
            self.failures[type(error).__name__] += 1
            return None
        finally:
            http.close()
        if answer.status not in (200, 202):
            self.failures[str(answer.status)] += 1
            return None
        reply: dict[str, Any] = answer.json()
        return reply
