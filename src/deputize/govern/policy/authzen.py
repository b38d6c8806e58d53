"""The second engine: a decision point somewhere else, asked over the OpenID AuthZEN Authorization API 1.0.

It is told what our own rules would see, except what a contract marks as sensitive: that never leaves, and the names of
what was withheld are sent instead. Only a well-formed answer in time is one; anything else is a no. The network is the
caller's: `post` is handed in by the lifecycle.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import urlsplit

import orjson

from deputize.core.decision import Behavior, Question, Rule, Verdict, demanded
from deputize.core.errors import PolicyFailed, Problem
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Policy
from deputize.govern.policy.discretion import told_facts, told_touches
from deputize.govern.policy.world import describe_caller, describe_tool

_PATH = "/access/v1/evaluation"
_MAX_ANSWER_BYTES = 65_536
_MOST_RULES = 20
_LONGEST_ID = 64
_LONGEST_REASON = 400
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9_.:/-]+")
_REASONS = ("reason_user", "reason_admin")


class Post(Protocol):
    """The body of a 200, or a `Problem`."""

    async def __call__(
        self, url: str, body: bytes, *, headers: Mapping[str, str], seconds: float, max_bytes: int
    ) -> bytes: ...


class AuthZen:
    def __init__(self, settings: Policy, post: Post) -> None:
        if not settings.authzen_url:
            raise Misconfigured(
                f"policy.engine is {settings.engine}, but no decision point is named: "
                "put authzen_url under [policy] in deputize.toml."
            )
        base = settings.authzen_url.rstrip("/")
        place = urlsplit(base)
        if place.scheme not in ("http", "https") or not place.hostname:
            raise Misconfigured(
                "policy.authzen_url is no address of a decision point: write it like https://pdp.example.com."
            )
        self.name = place.hostname
        self._url = base + _PATH
        self._post = post
        self._seconds = settings.authzen_seconds
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if settings.authzen_token is not None:
            self._headers["Authorization"] = f"Bearer {settings.authzen_token.get_secret_value()}"
        # Which decision point it was; what policies it has, only it knows.
        self._digest = "authzen:" + hashlib.sha256(base.encode()).hexdigest()[:32]

    async def decide(self, question: Question) -> Verdict:
        """What the decision point says, or `PolicyFailed` where it says nothing that can be relied on."""
        try:
            answer = await self._post(
                self._url,
                orjson.dumps(evaluation(question)),
                headers=self._headers,
                seconds=self._seconds,
                max_bytes=_MAX_ANSWER_BYTES,
            )
        except Problem as problem:
            raise self._failed(problem.message) from problem
        return self._verdict(self._read(answer))

    def _read(self, answer: bytes) -> dict[str, Any]:
        try:
            read = json.loads(answer, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise self._failed("its answer is not JSON, or says a thing twice") from error
        if not isinstance(read, dict) or not isinstance(read.get("decision"), bool):
            raise self._failed("its answer holds no decision that is true or false")
        return read

    def _verdict(self, answer: dict[str, Any]) -> Verdict:
        said = answer.get("context")
        context = {} if said is None else said
        if not isinstance(context, dict):
            raise self._failed("the context of its answer is not an object")
        asks = context.get("ask", False)
        if not isinstance(asks, bool):
            raise self._failed("the ask in its answer is neither true nor false")
        behavior = Behavior.DENY
        if answer["decision"]:
            behavior = Behavior.ASK if asks else Behavior.ALLOW
        reason = _text(context.get("reason_user")) or _text(context.get("reason"))
        rules = tuple(Rule(id=f"authzen:{each}", where=self.name, reason=reason) for each in self._ids(context))
        return Verdict(
            behavior=behavior,
            rules=rules,
            digest=self._digest,
            source="authzen",
            reason=reason,
            demands=demanded(rules) if behavior is Behavior.ASK else (),
        )

    def _ids(self, context: dict[str, Any]) -> list[str]:
        """What to call the reasons: our own `rules`, else the ids the API's reasons stand under, else one for all."""
        rules = context.get("rules")
        if rules is not None:
            if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
                raise self._failed("the rules in its answer are not a list of names")
            found = rules
        elif isinstance(context.get("id"), str | int):
            found = [str(context["id"])]
        else:
            found = [key for name in _REASONS if isinstance(context.get(name), dict) for key in context[name]]
        named = (_NOT_IN_AN_ID.sub("-", each)[:_LONGEST_ID].strip("-") for each in found)
        return list(dict.fromkeys(each for each in named if each))[:_MOST_RULES] or ["decision"]

    def _failed(self, why: str) -> PolicyFailed:
        return PolicyFailed(
            f"the decision point {self.name} gave no usable answer: {why}",
            details={"decision_point": self.name, "rule": "authzen:no-answer"},
            nothing_happened=True,
        )


def evaluation(question: Question) -> dict[str, Any]:
    """The question as the API spells it."""
    caller, contract = describe_caller(question.caller), describe_tool(question.contract)
    facts = told_facts(question)
    context = {
        "environment": question.environment,
        "time": datetime.fromtimestamp(question.now_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "session": question.session,
        "facts": facts,
        "withheld": sorted(set(question.facts) - set(facts)),
        "touches": [
            {"resource": resource, "operation": operation, "scope": scope}
            for resource, operation, scope in told_touches(question)
        ],
        "cost": question.cost_micros,
        "labels": sorted(question.labels),
    }
    return {
        "subject": {"type": "user", "id": caller.pop("user"), "properties": _known(caller)},
        "action": {"name": "call"},
        "resource": {"type": "tool", "id": contract.pop("name"), "properties": _known(contract)},
        "context": _known(context),
    }


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _text(reason: Any) -> str:
    """The API's reasons are texts by language or status; the first is as good as any other."""
    if isinstance(reason, dict):
        reason = next(iter(reason.values()), "")
    if not isinstance(reason, str):
        return ""
    return "".join(sign if sign.isprintable() else " " for sign in reason[:_LONGEST_REASON]).strip()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name that is given twice")
    return made
