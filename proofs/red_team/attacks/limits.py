"""Do more than limits allow: more at once, more often, more expensive, or more than a delegation permits."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from deputize.core.mcp.constants import HANDSHAKE_VERSIONS
from proofs.kit.gateway import GatewayHandle, start_worker
from proofs.red_team.arena import Arena
from proofs.red_team.attack import AttackLog, Control, Finding
from proofs.red_team.token_holder import TokenHolder

NAME = "limits"
_ASYNC_AT_ONCE = "asynchronous calls run at once beyond a concurrency limit"
_APPROVED_AT_ONCE = "approved calls run at once beyond a concurrency limit"
_ASYNC_BUDGET = "asynchronous calls cost more than a budget"
CONTROL = Control(
    variant="red_team_unlimited_runs", attempts=frozenset({_ASYNC_AT_ONCE, _APPROVED_AT_ONCE, _ASYNC_BUDGET})
)
_CONSOLE = "proof-console"
_POLICY = """
@id("open") permit (principal, action, resource) unless { resource == Tool::"jobs.work" };
@id("asks") @decision("ask") @approvers("oncall") permit (principal, action, resource == Tool::"jobs.work");
"""
# What may be done of each kind. Every attempt has a user of its own.
_RATE, _BUDGET_CALLS, _APPROVALS, _EXCHANGES, _FAILURES, _ACTS = 3, 4, 4, 6, 5, 6
_SETTINGS = f"""
human = true
console_audience = "{_CONSOLE}"

[limits]
approval_requests_per_hour = {_APPROVALS}
token_exchanges_per_minute = {_EXCHANGES}
failed_exchanges_per_minute = {_FAILURES}
rules = [
  {{ name = "one", kind = "concurrency", limit = 1, per = ["user"], tools = "jobs.*" }},
  {{ name = "purse", kind = "budget", limit = 2.0, seconds = 86400, per = ["user"], tools = "limits.spend" }},
  {{ name = "slope", kind = "cost_rate", limit = 2.0, seconds = 600, per = ["user"], tools = "limits.burn" }},
  {{ name = "pace", kind = "rate", limit = {_RATE}, seconds = 600, per = ["user"], tools = "limits.look" }},
  {{ name = "visit", kind = "rate", limit = {_RATE}, seconds = 600, per = ["session"], tools = "limits.strict" }},
  {{ name = "loops", kind = "repeats", limit = {_RATE}, seconds = 600, per = ["user"], tools = "limits.again" }},
  {{ name = "marks", kind = "rate", limit = {_RATE + 1}, seconds = 600, per = ["user"], tools = "jobs.mark" }},
]

[runs]
poll_seconds = 0.05
"""
_CALLS, _RESTING_MS, _END_SECONDS = 6, 800, 60.0
_DONE = frozenset({"succeeded", "failed", "cancelled", "denied", "unknown"})
_ADMIN = "deputize:admin"


async def attack(arena: Arena, log: AttackLog) -> None:
    port = arena.sandbox.pick_free_port()
    turns = arena.sandbox.folder / f"turns-{port}"
    gateway = await arena.start_gateway(
        tools="[jl]*.py",
        policies=_POLICY,
        port=port,
        settings=_SETTINGS,
        env={
            "DEPUTIZE_IDENTITY__PUBLIC_URL": f"http://127.0.0.1:{port}",
            "DEPUTIZE_LIMITS__ADMIN_ACTS_PER_SECOND": "0.01",
            "DEPUTIZE_LIMITS__ADMIN_ACTS_AT_ONCE": str(_ACTS),
            "PROOF_TURNS": str(turns),
        },
    )
    await _start_worker(arena, gateway)
    spender = Spender(holder=TokenHolder(url=gateway.url, issuer=arena.issuer), turns=turns)
    attempts: dict[str, Callable[[], Awaitable[Finding]]] = {
        _ASYNC_AT_ONCE: spender.run_at_once,
        _APPROVED_AT_ONCE: spender.run_approved_at_once,
        _ASYNC_BUDGET: lambda: spender.spend("spend", "limits.spend", mode="async"),
        "calls at once cost more than a budget": lambda: spender.spend("spend-now", "limits.spend"),
        "asynchronous calls cost more than a cost rate": lambda: spender.spend("burn", "limits.burn", mode="async"),
        "asynchronous calls are submitted beyond a rate": spender.submit_beyond_rate,
        "a request's session replaces the token's": spender.replace_session,
        "a user multiplies through the agents of an issuer": spender.use_issuer_agents,
        "a user multiplies through exchanged tokens": spender.use_exchanged_tokens,
        "a batch exceeds a rate": spender.send_batch,
        "three interfaces together exceed a rate": spender.use_every_interface,
        "other spellings of a tool exceed its rate": spender.spell_tool,
        "replays give back what other calls were charged": spender.replay,
        "the same arguments written otherwise escape a loop limit": spender.rewrite_arguments,
        "a constrained delegation calls with another argument": spender.break_constraint,
        "a further delegation drops a constraint": spender.drop_constraint,
        "a repeated argument hides from a constraint": spender.repeat_argument,
        "an asynchronous call escapes a constraint": spender.break_constraint_later,
        "administrative acts exceed their rate": spender.flood_acts,
        "approval requests of many agents exceed their limit": spender.flood_approvals,
        "token exchanges for many agents exceed their limit": spender.flood_exchanges,
        "failed exchanges with forwarded addresses exceed their limit": spender.flood_failures,
        "failed exchanges of anybody close the exchange to everybody": spender.lock_out,
    }
    for name, attempt in attempts.items():
        await log.attempt(name, attempt)


async def _start_worker(arena: Arena, gateway: GatewayHandle) -> None:
    if arena.variant is None:
        await start_worker(gateway, f"{gateway.name}-worker")
    else:
        await arena.start_worker_variant(gateway)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spender:
    """A user with a good token, who wants more than the limits give."""

    holder: TokenHolder
    turns: Path

    async def run_at_once(self) -> Finding:
        token = self.holder.sign("async-crowd")
        calls = [
            self.holder.call(token, "jobs.single", _make_job(f"async-{number}"), mode="async")
            for number in range(_CALLS)
        ]
        await self._await_ends(token, await asyncio.gather(*calls))
        return self._judge_overlap("async-")

    async def run_approved_at_once(self) -> Finding:
        """Approve as many calls as may be asked for, and see how many run at the same time."""
        token, approver = self.holder.sign("approved-crowd"), self._sign_in("bob")
        answers = []
        for number in range(_APPROVALS):
            arguments = {**_make_job(f"approved-{number}"), "place": f"desk-{number}"}
            answers.append(await self.holder.call(token, "jobs.work", arguments))
        for answer in answers:
            path = f"/v1/approvals/{answer['approval']['approval_id']}"
            binding = (await self.holder.send("GET", path, token=approver)).json()["binding"]
            body = {"reason": "an attempt", "binding": binding}
            decided = await self.holder.send("POST", f"{path}/approve", body, token=approver)
            if decided.status != 200:
                raise RuntimeError(f"nothing was approved: {decided.body[:200]!r}")
        await self._await_ends(token, answers)
        return self._judge_overlap("approved-")

    async def spend(self, user: str, tool: str, **fields: Any) -> Finding:
        """Make ten calls of 0.5 each where 2 may be spent; those that a rate holds back stay queued."""
        token = self.holder.sign(user)
        calls = [self.holder.call(token, tool, {"cents": 50}, **fields) for _ in range(10)]
        answers = await asyncio.gather(*calls)
        if fields:
            is_budget = tool == "limits.spend"
            answers = await self._await_ends(token, answers, at_least=10 if is_budget else _BUDGET_CALLS)
        succeeded = sum(each.get("state") == "succeeded" for each in answers)
        return _judge_count(succeeded, _BUDGET_CALLS, answers)

    async def submit_beyond_rate(self) -> Finding:
        """A rate admits as many submissions as it admits executions."""
        token = self.holder.sign("submitter")
        calls = [self.holder.call(token, "limits.look", {"word": f"{each}"}, mode="async") for each in range(12)]
        answers = await asyncio.gather(*calls)
        return _judge_count(sum("error" not in each for each in answers), _RATE, answers)

    async def replace_session(self) -> Finding:
        token = self.holder.sign("visitor", sid="the-token's")
        answers = [
            await self.holder.call(token, "limits.strict", {"word": "a"}, session=f"another-{each}")
            for each in range(2 * _RATE)
        ]
        meta = [await self._call_mcp(token, "limits__strict", {"word": "a"}, f"{each}") for each in range(_RATE)]
        return _judge_calls([*answers, *meta], _RATE)

    async def use_issuer_agents(self) -> Finding:
        tokens = [self.holder.sign("many", act={"sub": f"agent-{each}"}) for each in range(2 * _RATE)]
        return _judge_calls([await self._look(each) for each in tokens], _RATE)

    async def use_exchanged_tokens(self) -> Finding:
        """Delegate to several agents, and from one of them further."""
        token = self.holder.sign("lender")
        tokens = [await self.holder.delegate(token, agent=f"bot-{each}") for each in range(_EXCHANGES - 2)]
        tokens.append(await self.holder.delegate(tokens[0], agent="deputy", task="other"))
        return _judge_calls([await self._look(each) for each in (*tokens, token)], _RATE)

    async def send_batch(self) -> Finding:
        token = self.holder.sign("batcher")
        batch = [_make_rpc_call(number, {"word": f"{number}"}) for number in range(12)]
        answers = (await self.holder.send("POST", "/rpc", batch, token=token)).json()
        return _judge_calls([each.get("result", each) for each in answers], _RATE)

    async def use_every_interface(self) -> Finding:
        token = self.holder.sign("everywhere")
        answers = [await self._look(token) for _ in range(2)]
        for number in range(2):
            rpc = await self.holder.send("POST", "/rpc", _make_rpc_call(number, {"word": "b"}), token=token)
            answers += [
                rpc.json().get("result", rpc.json()),
                await self._call_mcp(token, "limits__look", {"word": "c"}, "m"),
            ]
        return _judge_calls(answers, _RATE)

    async def spell_tool(self) -> Finding:
        token = self.holder.sign("speller")
        spellings = ("limits.look", "limits__look", "LIMITS.look", "limits.look ", "limits.look@1.0.0", "limits.lOOk")
        versions = ("latest", "1.0.0", "^1.0", "*", "1", ">=1.0.0")
        answers = [await self.holder.call(token, each, {"word": "a"}) for each in spellings]
        answers += [await self.holder.call(token, "limits.look", {"word": "a"}, version=each) for each in versions]
        return _judge_calls(answers, _RATE)

    async def replay(self) -> Finding:
        """Repeat one key, whose charge is given back each time, and then make as many new calls as are let in."""
        token = self.holder.sign("repeater")
        effects = set()
        keys = ["key-0"] * 8 + [f"key-{each}" for each in range(1, 10)] + ["key-0"] * 8 + ["last"]
        for number, key in enumerate(keys):
            arguments = {"label": "key-0"} if key == "key-0" else {"label": f"mark-{number}"}
            answer = await self.holder.call(token, "jobs.mark", arguments, key=key)
            if answer.get("state") == "succeeded":
                effects.add(answer["call_id"])
        return Finding(succeeded=len(effects) > _RATE + 1, evidence=f"{len(effects)} of at most {_RATE + 1} calls")

    async def rewrite_arguments(self) -> Finding:
        token = self.holder.sign("circler")
        texts = [
            b'{"word":"a"}', b'{ "word" : "a" }', b'{"word":"\\u0061"}', b'{"word"\n:"a"}', b'{"wor\\u0064":"a"}',
            b'{\t"word":"\\u0061" }',
        ]  # fmt: skip
        answers: list[Any] = []
        for text in texts:
            body = b'{"tool":"limits.again","session":"s' + str(len(answers)).encode() + b'","arguments":' + text + b"}"
            answers.append((await self.holder.send("POST", "/v1/calls", body, token=token)).json())
        return _judge_calls(answers, _RATE)

    async def break_constraint(self) -> Finding:
        token = await self._delegate_word("a")
        if (await self._look(token, "a")).get("state") != "succeeded":
            raise RuntimeError("the delegation allows nothing, so its constraint shows nothing")
        return _judge_calls([await self._look(token, "b"), await self.holder.call(token, "limits.look", {})], 0)

    async def drop_constraint(self) -> Finding:
        constrained = await self._delegate_word("a", user="dropper")
        wider = '{"arguments": {"limits.look": {"word": {"enum": ["a", "b"]}}}}'
        tokens = []
        more: tuple[dict[str, str], ...] = ({}, {"constraints": "{}"}, {"constraints": wider})
        for fields in more:
            answer = await self.holder.exchange(constrained, {"agent": "next", **fields})
            if answer.status == 200:
                tokens.append(answer.json()["access_token"])
        if not tokens:
            raise RuntimeError("nothing was exchanged, so no constraint could be dropped")
        return _judge_calls([await self._look(each, "b") for each in tokens], 0)

    async def repeat_argument(self) -> Finding:
        token = await self._delegate_word("a", user="hider")
        answers = []
        for text in (b'{"word":"a","word":"b"}', b'{"word":"b","word":"a"}', b'{"word":"a","Word":"b"}'):
            body = b'{"tool":"limits.look","arguments":' + text + b"}"
            answers.append((await self.holder.send("POST", "/v1/calls", body, token=token)).json())
        reached = [each for each in answers if (each.get("result") or {}).get("word") == "b"]
        return Finding(succeeded=bool(reached), evidence=_summarize(answers))

    async def break_constraint_later(self) -> Finding:
        token = await self._delegate_word("a", user="later")
        answer = await self.holder.call(token, "limits.look", {"word": "b"}, mode="async")
        ended = await self._await_ends(token, [answer])
        return _judge_calls(ended, 0)

    async def flood_acts(self) -> Finding:
        token = self.holder.sign("root", scope=_ADMIN)
        acts = [
            self.holder.send("POST", "/v1/revocations", {"kind": "token", "value": f"t-{each}"}, token=token)
            for each in range(5 * _ACTS)
        ]
        answers = await asyncio.gather(*acts)
        return _judge_count(
            sum(each.status < 300 for each in answers), _ACTS, [{"state": each.status} for each in answers]
        )

    async def flood_approvals(self) -> Finding:
        answers = []
        for number in range(3 * _APPROVALS):
            token = self.holder.sign("asker", act={"sub": f"bot-{number}"}, sid=f"session-{number}")
            arguments = {**_make_job(f"flood-{number}"), "place": f"flood-{number}"}
            answers.append(await self.holder.call(token, "jobs.work", arguments))
        return _judge_count(sum("approval" in each for each in answers), _APPROVALS, answers)

    async def flood_exchanges(self) -> Finding:
        answers = [
            await self.holder.exchange(self.holder.sign("exchanger", sid=f"{each}"), {"agent": f"bot-{each}"})
            for each in range(3 * _EXCHANGES)
        ]
        statuses = [{"state": each.status} for each in answers]
        return _judge_count(sum(each.status == 200 for each in answers), _EXCHANGES, statuses)

    async def flood_failures(self) -> Finding:
        """Guess tokens; each guess that is told why it failed is one that the limit let through."""
        answers = []
        for number in range(4 * _FAILURES):
            address = f"198.51.100.{number}"
            # As a proxy on this machine forwards it: it appends the client's address to what the client sent.
            forwarded = f"{address}, 203.0.113.9"
            headers = {"x-forwarded-for": forwarded, "forwarded": f"for={address}", "x-real-ip": address}
            answers.append(await self.holder.exchange(f"guess-{number}", {"agent": "bot"}, headers=headers))
        statuses = [{"state": each.status} for each in answers]
        return _judge_count(sum(each.status != 429 for each in answers), _FAILURES, statuses)

    async def lock_out(self) -> Finding:
        """Fail often without a token, behind the load balancer that everybody is behind, and exchange a good one."""
        failures = [await self.holder.exchange(f"junk-{number}", {"agent": "bot"}) for number in range(4 * _FAILURES)]
        if all(each.status != 429 for each in failures):
            raise RuntimeError("the limit was not reached, so it shows nothing")
        answer = await self.holder.exchange(self.holder.sign("bystander"), {"agent": "bot"})
        return Finding(succeeded=answer.status != 200, evidence=f"{answer.status} {answer.body[:120]!r}")

    async def _look(self, token: str, word: str = "a") -> Any:
        return await self.holder.call(token, "limits.look", {"word": word})

    async def _delegate_word(self, word: str, user: str = "constrainer") -> str:
        constraints = orjson.dumps({"arguments": {"limits.look": {"word": {"const": word}}}}).decode()
        return await self.holder.delegate(self.holder.sign(user), agent="bound", constraints=constraints)

    async def _call_mcp(self, token: str, tool: str, arguments: Any, session: str) -> Any:
        params = {"name": tool, "arguments": arguments, "_meta": {"session": session, "sessionId": session}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": HANDSHAKE_VERSIONS[0],
            "mcp-session-id": session,
        }
        answer = (await self.holder.send("POST", "/mcp", body, token=token, headers=headers)).json()
        result = answer.get("result", {})
        is_success = "error" not in answer and not result.get("isError")
        return {"state": "succeeded"} if is_success else {"error": {"slug": str(answer)[:80]}}

    def _sign_in(self, user: str) -> str:
        return self.holder.sign(user, aud=_CONSOLE, groups=["oncall"])

    async def _await_ends(self, token: str, answers: Sequence[Any], at_least: int | None = None) -> list[Any]:
        """Wait until so many of the calls ended, by default all that were accepted, and return what is known of all."""
        refused = [each for each in answers if "call_id" not in each or "error" in each]
        accepted = [each["call_id"] for each in answers if each not in refused]
        wanted = len(accepted) if at_least is None else min(at_least, len(accepted))
        async with asyncio.timeout(_END_SECONDS):
            while True:
                states = [(await self.holder.send("GET", f"/v1/calls/{each}", token=token)).json() for each in accepted]
                if sum(each.get("state") in _DONE for each in states) >= wanted:
                    return [*refused, *states]
                await asyncio.sleep(0.1)

    def _judge_overlap(self, prefix: str) -> Finding:
        lines = [orjson.loads(line) for line in self.turns.read_bytes().splitlines()]
        jobs = [each for each in lines if each["label"].startswith(prefix)]
        most = max(sum(each["began"] <= other["began"] < each["ended"] for each in jobs) for other in jobs)
        return Finding(succeeded=most > 1, evidence=f"{len(jobs)} ran, at most {most} at once")


def _make_job(label: str) -> dict[str, Any]:
    return {"label": label, "milliseconds": _RESTING_MS}


def _make_rpc_call(number: int, arguments: Any) -> dict[str, Any]:
    params = {"tool": "limits.look", "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "calls.create", "params": params}


def _judge_calls(answers: Sequence[Any], limit: int) -> Finding:
    return _judge_count(sum(each.get("state") == "succeeded" for each in answers), limit, answers)


def _judge_count(count: int, limit: int, answers: Sequence[Any]) -> Finding:
    if limit and not count:
        raise RuntimeError(f"nothing was let in, so the limit shows nothing: {_summarize(answers)}")
    return Finding(succeeded=count > limit, evidence=f"{count} of at most {limit}: {_summarize(answers)}")


def _summarize(answers: Sequence[Any]) -> str:
    words = Counter(str(_get_slug(each.get("error") or {}) or each.get("state")) for each in answers)
    return ", ".join(f"{word} {count}" for word, count in sorted(words.items()))


def _get_slug(error: Any) -> Any:
    """Get the problem's slug from REST's error, or from the data of JSON-RPC's."""
    return error.get("slug") or (error.get("data") or {}).get("slug") or error.get("message")
