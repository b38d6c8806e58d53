"""How callers ask and people answer, through gateways that come and go: with the same key until it is answered.

Above: `stories`. Below: `house`.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from proofs.asked.house import AGAIN, GONE, Gate, House
from proofs.asked.people import LEADS
from proofs.asked.tale import Heard, Tale
from proofs.kit.wire import Answer

_PAUSE = 0.15
# Nights without workers and a machine that is busy otherwise add up; what takes longer than this is stuck.
_MOST_SECONDS = 300.0
_STUCK = """
select k.state, k.error, k.owner_epoch, k.asked, now() - k.created_at as age,
       r.queued_at, r.started_at, r.takeovers, r.handouts,
       (select json_agg(json_build_object('state', a.state, 'expires', a.expires_at)) from deputize.approvals a
        where a.tenant = k.tenant and a.call_id = k.id) as tickets
from deputize.calls k left join deputize.runs r on r.tenant = k.tenant and r.id = k.id where k.id = $1
"""
_OUTSIDERS = ("sales",)


class Talk:
    def __init__(self, house: House) -> None:
        self.house = house

    async def ask(self, tale: Tale) -> None:
        """Until people are asked. Asked again, it is the same ticket."""
        told = await self._asked(tale, tale.label)
        tale.call, tale.expires = told["call_id"], _seconds(told["approval"]["expires_at"])
        tale.tickets.append(told["approval"]["ticket_id"])
        if self.house.choose.random() < 0.2:
            again = await self._asked(tale, tale.label)
            if (again["call_id"], again.get("approval", {}).get("ticket_id", tale.ticket)) != (tale.call, tale.ticket):
                tale.wrong.append("the same key again made another ticket")

    async def ask_otherwise(self, tale: Tale) -> None:
        """The same key with other arguments, which must not become what people decide about."""
        answer = await self._ask_once(tale, f"{tale.label}-other")
        if answer is not None and answer.status not in (409, 422, *AGAIN):
            tale.wrong.append(f"other arguments under the same key were answered with {answer.status}")

    async def until_asked_again(self, tale: Tale) -> None:
        """Until there is a newer ticket for the call."""
        async with self._patience(tale):
            while True:
                answer = await self._ask_once(tale, tale.label)
                if answer is not None and answer.status == 202:
                    ticket = answer.json().get("approval", {}).get("ticket_id", tale.ticket)
                    if ticket != tale.ticket:
                        tale.tickets.append(ticket)
                        return
                elif answer is not None and answer.status not in AGAIN:
                    # It ended otherwise, which is the judge's to see.
                    return
                await asyncio.sleep(2 * _PAUSE)

    async def approve(self, tale: Tale, who: str, *, word: str = "approve", gate: Gate | None = None) -> None:
        """Somebody who may, until the gateways have heard it. What was lost on the way may have counted."""
        tale.rightful.add(who)
        scope = "deputize:break-glass" if word == "break-glass" else ""
        token = self.house.people.person(who, scope=scope)
        said = {"reason": f"{word} {tale.label}"}
        if self.house.choose.random() < 0.5 and (binding := await self._binding(tale, token)):
            said["binding"] = binding
        async with self._patience(tale):
            while True:
                answer = await self._say(tale, who, word, token, said, gate or self.house.gate())
                if answer is not None and answer.status not in AGAIN:
                    return
                gate = None
                await asyncio.sleep(_PAUSE)

    async def deny(self, tale: Tale, who: str, *, gate: Gate | None = None) -> None:
        await self.approve(tale, who, word="deny", gate=gate)

    async def wrongly(self, tale: Tale, how: str) -> None:
        """Somebody who may not. An answer of any kind is fine, but for one that says it was taken."""
        person, house = self.house.people.person, self.house
        said: dict[str, Any] = {"reason": "let me"}
        word, user = "approve", tale.user
        match how:
            case "requester":
                token = person(user)
            case "agent":
                token = tale.token
            case "agent of the console":
                token = person(user, act={"sub": tale.agent or "bot"})
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
                user, token, said["binding"] = "bad", person("bad"), "0" * 64
            case "glass without the scope":
                user, token, word = "gab", person("gab"), "break-glass"
            case _:
                raise ValueError(how)
        answer = await self._say(tale, user, word, token, said, house.gate())
        if answer is not None and answer.status == 200:
            tale.wrong.append(f"decided by {how}")
        elif answer is not None and 400 <= answer.status < 500:
            tale.refused_by[how] += 1

    @contextlib.asynccontextmanager
    async def _patience(self, tale: Tale) -> AsyncIterator[None]:
        """What never comes to its end is told with what the database knows of it."""
        try:
            async with asyncio.timeout(_MOST_SECONDS):
                yield
        except TimeoutError as error:
            rows = await self.house.database.fetch(_STUCK, tale.call) if tale.call else []
            known = [dict(row) for row in rows]
            raise RuntimeError(f"{tale.label} ({tale.kind}) is stuck after {_MOST_SECONDS:g} s: {known}") from error

    async def _say(
        self, tale: Tale, who: str, word: str, token: str, said: dict[str, Any], gate: Gate | None
    ) -> Answer | None:
        if gate is None:
            return None
        ticket = tale.ticket
        tale.tries[ticket] += 1
        try:
            answer = await self.house.post(gate, f"/v1/approvals/{ticket}/{word}", said, token)
        except GONE:
            return None
        if answer.status == 200:
            state = answer.json()["state"]
            tale.heard.append(Heard(ticket=ticket, who=who, word=word, state=state, at=time.time()))
        elif 400 <= answer.status < 500 and answer.status not in (401, 429):
            tale.refused[ticket] += 1
        elif answer.status not in (401, *AGAIN):
            tale.wrong.append(f"{word} was answered with {answer.status}: {answer.body[:200]!r}")
        return answer

    async def _binding(self, tale: Tale, token: str) -> str | None:
        gate = self.house.gate()
        try:
            answer = await self.house.send(gate, "GET", f"/v1/approvals/{tale.ticket}", None, token) if gate else None
        except GONE:
            return None
        return str(answer.json()["binding"]) if answer is not None and answer.status == 200 else None

    async def _asked(self, tale: Tale, label: str) -> dict[str, Any]:
        async with self._patience(tale):
            while True:
                answer = await self._ask_once(tale, label)
                if answer is not None and answer.status == 202:
                    told: dict[str, Any] = answer.json()
                    return told
                if answer is not None and answer.status not in AGAIN and not _is_news(answer):
                    return _over_by_now(tale, answer)
                await asyncio.sleep(_PAUSE)

    async def _ask_once(self, tale: Tale, label: str) -> Answer | None:
        gate = self.house.gate(hasty=tale.hasty)
        if gate is None:
            return None
        asked = {"tool": tale.tool, "arguments": {"label": label, "delay_ms": tale.delay_ms}}
        try:
            return await self.house.post(gate, "/v1/calls", asked, tale.token, idempotency_key=tale.label)
        except GONE:
            return None


def _is_news(answer: Answer) -> bool:
    """A gateway that has not heard yet of a tool or rule that was just made says no, and nothing comes of that."""
    return answer.status in (403, 404) and answer.json()["error"]["slug"] in ("permission-denied", "tool-not-found")


def _over_by_now(tale: Tale, answer: Answer) -> dict[str, Any]:
    """What was asked in a hurry, and answered into nowhere, may be over when it is asked for again."""
    told: dict[str, Any] = answer.json()
    if not tale.hasty or told["error"]["slug"] != "approval-expired":
        raise RuntimeError(f"{tale.label} ({tale.kind}) was not asked: {answer.status} {answer.body[:600]!r}")
    details = told["error"]["details"]
    return {"call_id": told["call_id"], "approval": {"expires_at": details["expired_at"], **details}}


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
