"""Ask an external decision point (PDP) over the OpenID AuthZEN Authorization API 1.0.

The request contains what Cedar rules could read, except values that a contract marks as sensitive: only their names are
sent. Anything but a well-formed response in time counts as a denial. The lifecycle passes in `post`, so all traffic
uses the one egress client.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import urlsplit

import orjson

from deputize.core.config_error import ConfigError
from deputize.core.decision import Behavior, MatchedRule, PolicyRequest, Verdict, build_approval_requirements
from deputize.core.errors import PolicyFailed, Problem
from deputize.core.settings import PolicySettings
from deputize.govern.policy.cedar_schema import describe_caller, describe_tool
from deputize.govern.policy.disclosure import disclose_facts, disclose_touches

_PATH = "/access/v1/evaluation"
_MAX_ANSWER_BYTES = 65_536
_MAX_RULES = 20
_MAX_ID_LENGTH = 64
_MAX_REASON_LENGTH = 400
_INVALID_IN_ID = re.compile(r"[^A-Za-z0-9_.:/-]+")
_REASON_FIELDS = ("reason_user", "reason_admin")
# What an answer may oblige the gateway to. Every call is recorded, so the second is met already.
_ASK, _LOG = "ask", "log"


class PostJson(Protocol):
    """Send a POST request; return the body of a 200 response, or raise `Problem`."""

    async def __call__(
        self, url: str, body: bytes, *, headers: Mapping[str, str], seconds: float, max_bytes: int
    ) -> bytes: ...


class AuthZenClient:
    """A client of one external decision point."""

    def __init__(self, settings: PolicySettings, post: PostJson) -> None:
        if not settings.authzen_url:
            raise ConfigError(
                f"policy.engine is {settings.engine}, but the decision point has no URL: "
                "set authzen_url under [policy] in deputize.toml."
            )
        base = settings.authzen_url.rstrip("/")
        url = urlsplit(base)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError("policy.authzen_url is not an http or https URL: write it like https://pdp.example.com.")
        self.name = url.hostname
        self._url = base + _PATH
        self._post = post
        self._seconds = settings.authzen_seconds
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if settings.authzen_token is not None:
            self._headers["Authorization"] = f"Bearer {settings.authzen_token.get_secret_value()}"
        # Identifies the decision point; the digest of its policies is unknown here.
        self._digest = "authzen:" + hashlib.sha256(base.encode()).hexdigest()[:32]

    async def decide(self, request: PolicyRequest) -> Verdict:
        """Ask the decision point for a verdict. Raise `PolicyFailed` if it gives no valid response in time."""
        try:
            answer = await self._post(
                self._url,
                orjson.dumps(build_evaluation(request)),
                headers=self._headers,
                seconds=self._seconds,
                max_bytes=_MAX_ANSWER_BYTES,
            )
        except Problem as problem:
            raise self._build_failure(problem.message) from problem
        return self._build_verdict(self._parse_answer(answer))

    def _parse_answer(self, answer: bytes) -> dict[str, Any]:
        try:
            body = json.loads(answer, object_pairs_hook=_reject_duplicates)
        except (ValueError, RecursionError) as error:
            raise self._build_failure("the response is not valid JSON, or repeats a key") from error
        if not isinstance(body, dict) or not isinstance(body.get("decision"), bool):
            raise self._build_failure("the response has no decision that is true or false")
        return body

    def _build_verdict(self, answer: dict[str, Any]) -> Verdict:
        raw_context = answer.get("context")
        context = {} if raw_context is None else raw_context
        if not isinstance(context, dict):
            raise self._build_failure("the context in the response is not an object")
        should_ask = context.get("ask", False)
        if not isinstance(should_ask, bool):
            raise self._build_failure("context.ask in the response is neither true nor false")
        behavior = Behavior.DENY
        if answer["decision"]:
            should_ask = should_ask or _ASK in self._extract_obligations(context)
            behavior = Behavior.ASK if should_ask else Behavior.ALLOW
        reason = _extract_text(context.get("reason_user")) or _extract_text(context.get("reason"))
        rules = tuple(
            MatchedRule(id=f"authzen:{each}", where=self.name, reason=reason)
            for each in self._extract_rule_ids(context)
        )
        return Verdict(
            behavior=behavior,
            rules=rules,
            digest=self._digest,
            source="authzen",
            reason=reason,
            requirements=build_approval_requirements(rules) if behavior is Behavior.ASK else (),
        )

    def _extract_obligations(self, context: dict[str, Any]) -> set[str]:
        """Extract what an answer that allows obliges the gateway to. What it cannot do makes the answer none: allowed
        was only the call with the obligation.
        """
        obligations = context.get("obligations", [])
        if not isinstance(obligations, list):
            raise self._build_failure("context.obligations in the response is not a list")
        names = {_extract_text(each.get("id") if isinstance(each, dict) else each) for each in obligations}
        unknown = sorted(names - {_ASK, _LOG})
        # Whom to ask is decided here: an approval by others is not what it obliges to.
        unknown += [
            _ASK
            for each in obligations
            if isinstance(each, dict) and len(each) > 1 and _extract_text(each.get("id")) == _ASK
        ]
        if unknown:
            what = f": {unknown[0]}" if unknown[0] else ""
            raise self._build_failure(f"it obliges the gateway to what it cannot do{what}")
        return names

    def _extract_rule_ids(self, context: dict[str, Any]) -> list[str]:
        """Extract rule ids: from our extension `rules`, else from the API's `id` or reason keys, else one default."""
        rules = context.get("rules")
        if rules is not None:
            if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
                raise self._build_failure("context.rules in the response is not a list of strings")
            names = rules
        elif isinstance(context.get("id"), str | int):
            names = [str(context["id"])]
        else:
            names = [key for name in _REASON_FIELDS if isinstance(context.get(name), dict) for key in context[name]]
        rule_ids = (_INVALID_IN_ID.sub("-", each)[:_MAX_ID_LENGTH].strip("-") for each in names)
        return list(dict.fromkeys(each for each in rule_ids if each))[:_MAX_RULES] or ["decision"]

    def _build_failure(self, reason: str) -> PolicyFailed:
        return PolicyFailed(
            f"the decision point {self.name} gave no valid response: {reason}",
            details={"decision_point": self.name, "rule": "authzen:no-answer"},
            nothing_happened=True,
        )


def build_evaluation(request: PolicyRequest) -> dict[str, Any]:
    """Build the body of an AuthZEN evaluation request."""
    caller, contract = describe_caller(request.caller), describe_tool(request.contract)
    facts, undone = disclose_facts(request), request.undone
    context = {
        "environment": request.environment,
        "time": datetime.fromtimestamp(request.now_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "session": request.session,
        "facts": facts,
        "withheld": sorted(set(request.facts) - set(facts)),
        "touches": [
            {"resource": resource, "operation": operation, "scope": scope}
            for resource, operation, scope in disclose_touches(request)
        ],
        "cost": request.cost_micros,
        "labels": sorted(request.labels),
        "undoes": None if undone is None else {"tool": undone.tool, "agents": list(undone.agents)},
    }
    return {
        "subject": {"type": "user", "id": caller.pop("user"), "properties": _drop_none(caller)},
        "action": {"name": "call"},
        "resource": {"type": "tool", "id": contract.pop("name"), "properties": _drop_none(contract)},
        "context": _drop_none(context),
    }


def _drop_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _extract_text(reason: Any) -> str:
    """Extract a printable text. The API allows one text per language or status; take the first."""
    if isinstance(reason, dict):
        reason = next(iter(reason.values()), "")
    if not isinstance(reason, str):
        return ""
    return "".join(character if character.isprintable() else " " for character in reason[:_MAX_REASON_LENGTH]).strip()


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key occurs twice")
    return fields
