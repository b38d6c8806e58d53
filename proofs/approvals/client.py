"""How callers ask and people answer, through gateways that come and go: with the same key until it is answered."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from proofs.approvals.case import ApprovalCase, HeardDecision
from proofs.approvals.identities import LEADS
from proofs.approvals.testbed import CONNECTION_ERRORS, RETRY_STATUSES, GatewaySlot, Testbed
from proofs.kit.http_client import HttpResponse

_PAUSE = 0.15
_NO_BINDING = "0" * 64
# Nights without workers and a machine that is busy otherwise add up; what takes longer than this is stuck.
_TIMEOUT_SECONDS = 300.0
_STUCK = """
select k.state, k.error, k.owner_epoch, k.needs_approval, now() - k.created_at as age,
       r.queued_at, r.started_at, r.takeovers, r.enqueue_count,
       (select json_agg(json_build_object('state', a.state, 'expires', a.expires_at)) from deputize.approvals a
        where a.tenant = k.tenant and a.call_id = k.id) as tickets
from deputize.calls k left join deputize.runs r on r.tenant = k.tenant and r.id = k.id where k.id = $1
"""
_OUTSIDERS = ("sales",)


class ApprovalClient:
    def __init__(self, testbed: Testbed) -> None:
        self.testbed = testbed

    async def submit_call(self, case: ApprovalCase) -> None:
        """Until people are asked. Asked again, it is the same approval request."""
        reply = await self._submit_until_pending(case, case.label)
        case.call_id, case.expires_at = reply["call_id"], _parse_timestamp(reply["approval"]["expires_at"])
        case.request_ids.append(reply["approval"]["approval_id"])
        if self.testbed.rng.random() < 0.2:
            repeat_reply = await self._submit_until_pending(case, case.label)
            if (repeat_reply["call_id"], repeat_reply.get("approval", {}).get("approval_id", case.request_id)) != (
                case.call_id,
                case.request_id,
            ):
                case.faults.append("the same key again made another ticket")

    async def submit_other_arguments(self, case: ApprovalCase) -> None:
        """The same key with other arguments, which must not become what people decide about."""
        answer = await self._submit_once(case, f"{case.label}-other")
        if answer is not None and answer.status not in (409, 422, *RETRY_STATUSES):
            case.faults.append(f"other arguments under the same key were answered with {answer.status}")

    async def wait_for_new_request(self, case: ApprovalCase) -> None:
        """Until there is a newer approval request for the call."""
        async with self._enforce_timeout(case):
            while True:
                answer = await self._submit_once(case, case.label)
                if answer is not None and answer.status == 202:
                    ticket = answer.json().get("approval", {}).get("approval_id", case.request_id)
                    if ticket != case.request_id:
                        case.request_ids.append(ticket)
                        return
                elif answer is not None and answer.status not in RETRY_STATUSES:
                    # It ended otherwise, which is the judge's to see.
                    return
                await asyncio.sleep(2 * _PAUSE)

    async def approve(
        self, case: ApprovalCase, who: str, *, action: str = "approve", slot: GatewaySlot | None = None
    ) -> None:
        """Someone who may, until the gateways have heard it. What was lost on the way may have counted."""
        case.allowed_voters.add(who)
        scope = "deputize:break-glass" if action == "break-glass" else ""
        token = self.testbed.people.issue_person_token(who, scope=scope)
        body = {"reason": f"{action} {case.label}"}
        # A denial may leave it out.
        with_binding = action != "deny" or self.testbed.rng.random() < 0.5
        async with self._enforce_timeout(case):
            while True:
                if with_binding and "binding" not in body:
                    binding = await self._fetch_binding(case, token)
                    if binding is None:
                        await asyncio.sleep(_PAUSE)
                        continue
                    body["binding"] = binding
                answer = await self._send_decision(case, who, action, token, body, slot or self.testbed.pick_gateway())
                if answer is not None and answer.status not in RETRY_STATUSES:
                    return
                slot = None
                await asyncio.sleep(_PAUSE)

    async def deny(self, case: ApprovalCase, who: str, *, slot: GatewaySlot | None = None) -> None:
        await self.approve(case, who, action="deny", slot=slot)

    async def decide_wrongly(self, case: ApprovalCase, way: str) -> None:
        """Someone who may not. An answer of any kind is fine, but for one that says it was taken."""
        person, testbed = self.testbed.people.issue_person_token, self.testbed
        body: dict[str, Any] = {"reason": "let me"}
        body["binding"] = await self._fetch_binding(case, person("reader")) or _NO_BINDING
        action, user = "approve", case.user
        match way:
            case "requester":
                token = person(user)
            case "agent":
                token = case.token
            case "agent of the console":
                token = person(user, act={"sub": case.agent or "bot"})
            case "wrong group":
                user, token = "eve", person("eve", _OUTSIDERS)
            case "later group":
                user, token = "lea", person("lea", (LEADS,))
            case "stale sign-in":
                user, token = "sid", person("sid", stale=True)
            case "no console audience":
                user, token = "nat", person("nat", audience="proof-gateway")
            case "other tenant":
                user, token = "tom", person("tom", tenant="beside")
            case "another binding":
                user, token, body["binding"] = "bad", person("bad"), _NO_BINDING
            case "glass without the scope":
                user, token, action = "gab", person("gab"), "break-glass"
            case _:
                raise ValueError(way)
        answer = await self._send_decision(case, user, action, token, body, testbed.pick_gateway())
        if answer is not None and answer.status == 200:
            case.faults.append(f"decided by {way}")
        elif answer is not None and 400 <= answer.status < 500:
            case.refusals_by_way[way] += 1

    @contextlib.asynccontextmanager
    async def _enforce_timeout(self, case: ApprovalCase) -> AsyncIterator[None]:
        """What never comes to its end is told with what the database knows of it."""
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                yield
        except TimeoutError as error:
            rows = await self.testbed.database.fetch(_STUCK, case.call_id) if case.call_id else []
            row_dicts = [dict(row) for row in rows]
            raise RuntimeError(
                f"{case.label} ({case.kind}) is stuck after {_TIMEOUT_SECONDS:g} s: {row_dicts}"
            ) from error

    async def _send_decision(
        self, case: ApprovalCase, who: str, action: str, token: str, body: dict[str, Any], slot: GatewaySlot | None
    ) -> HttpResponse | None:
        if slot is None:
            return None
        ticket = case.request_id
        case.tries[ticket] += 1
        try:
            answer = await self.testbed.post_json(slot, f"/v1/approvals/{ticket}/{action}", body, token)
        except CONNECTION_ERRORS:
            return None
        if answer.status == 200:
            state = answer.json()["state"]
            case.decisions.append(HeardDecision(ticket=ticket, who=who, action=action, state=state, at=time.time()))
        elif 400 <= answer.status < 500 and answer.status not in (401, 429):
            case.refusals[ticket] += 1
        elif answer.status not in (401, *RETRY_STATUSES):
            case.faults.append(f"{action} was answered with {answer.status}: {answer.body[:200]!r}")
        return answer

    async def _fetch_binding(self, case: ApprovalCase, token: str) -> str | None:
        slot = self.testbed.pick_gateway()
        try:
            answer = (
                await self.testbed.send_request(slot, "GET", f"/v1/approvals/{case.request_id}", None, token)
                if slot
                else None
            )
        except CONNECTION_ERRORS:
            return None
        if answer is None or answer.status in RETRY_STATUSES:
            return None
        return str(answer.json()["binding"]) if answer.status == 200 else _NO_BINDING

    async def _submit_until_pending(self, case: ApprovalCase, label: str) -> dict[str, Any]:
        async with self._enforce_timeout(case):
            while True:
                answer = await self._submit_once(case, label)
                if answer is not None and answer.status == 202:
                    reply: dict[str, Any] = answer.json()
                    return reply
                if answer is not None and answer.status not in RETRY_STATUSES and not _is_propagation_delay(answer):
                    return _parse_expired(case, answer)
                await asyncio.sleep(_PAUSE)

    async def _submit_once(self, case: ApprovalCase, label: str) -> HttpResponse | None:
        slot = self.testbed.pick_gateway(has_short_deadline=case.has_short_deadline)
        if slot is None:
            return None
        request = {"tool": case.tool, "arguments": {"label": label, "delay_ms": case.delay_ms}}
        try:
            return await self.testbed.post_json(slot, "/v1/calls", request, case.token, idempotency_key=case.label)
        except CONNECTION_ERRORS:
            return None


def _is_propagation_delay(answer: HttpResponse) -> bool:
    """A gateway that has not heard yet of a tool or rule that was just made says no, and nothing comes of that."""
    return answer.status in (403, 404) and answer.json()["error"]["slug"] in ("permission-denied", "tool-not-found")


def _parse_expired(case: ApprovalCase, answer: HttpResponse) -> dict[str, Any]:
    """What was asked in a hurry, and answered into nowhere, may be over when it is asked for again."""
    problem: dict[str, Any] = answer.json()
    if not case.has_short_deadline or problem["error"]["slug"] != "approval-expired":
        raise RuntimeError(f"{case.label} ({case.kind}) was not asked: {answer.status} {answer.body[:600]!r}")
    details = problem["error"]["details"]
    return {"call_id": problem["call_id"], "approval": {"expires_at": details["expired_at"], **details}}


def _parse_timestamp(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
