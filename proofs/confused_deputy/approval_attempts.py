"""Who decides about calls that people are asked about: everybody tries who must not, then those who may.

Each of the wrong ones is told why, by the rule that speaks first.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from deputize.core.errors import HumanTaskNotFound, TokenAudienceMismatch
from deputize.govern.approvals import approvers as rules
from proofs.confused_deputy.console_pages import APPROVAL_PATH, build_form_endpoint, fetch_form_token
from proofs.confused_deputy.delegated_calls import DelegatedToken
from proofs.confused_deputy.refusals import read_rule
from proofs.confused_deputy.seed_data import APPROVAL_TOOL
from proofs.confused_deputy.testbed import (
    ADMIN,
    APPROVER,
    APPROVER_BESIDE,
    BREAK_GLASS_SCOPE,
    BREAK_GLASS_USERS,
    SCOPES,
    TENANT,
    Testbed,
)
from proofs.kit.http_client import HttpConnection, HttpResponse
from proofs.kit.jws import read_claims

_STALE_SECONDS = 3600
_NOT_FOUND_SLUG, _AUDIENCE_SLUG = HumanTaskNotFound.spec.slug, TokenAudienceMismatch.spec.slug
_BODY = {"reason": "seen"}
_ACTIONS = ("approve", "deny", "break-glass")
_DECISION_COUNT = """
    select (select count(*) from deputize.votes where tenant = $1)
         + (select count(*) from deputize.approvals where tenant = $1 and state <> 'open')
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class WrongDecider:
    """Someone who must not decide, and the rule or the problem that says so to a yes or a no."""

    label: str
    token: str
    expected_refusal: str
    may_deny: bool = False
    """Denying is open to those who took part in the call."""


@dataclass(kw_only=True, slots=True)
class AttemptResult:
    try_count: int = 0
    accepted_count: int = 0
    wrong_reason_count: int = 0
    """Refused, and for another reason than the right one."""
    samples: list[str] = field(default_factory=list)

    def add_sample(self, what: str, answer: HttpResponse) -> None:
        if len(self.samples) < 12:
            self.samples.append(f"{what}: {answer.status} {answer.body[:200]!r}")


async def create_wrong_deciders(testbed: Testbed, delegation: DelegatedToken) -> list[WrongDecider]:
    """Everybody who must not decide about calls of this person through this agent, with all else they could need."""
    http, key = HttpConnection.for_url(testbed.url), testbed.idp.get_key()
    admin, approver = await testbed.sign_in_user(ADMIN, *SCOPES), await testbed.sign_in_user(APPROVER, "proof:write")
    agent = await testbed.fetch_agent_token(delegation.agent, *SCOPES)
    all_scopes = {"scope": " ".join(SCOPES)}
    admin_delegation, approver_delegation = (
        await testbed.delegate(http, admin, agent, **all_scopes),
        await testbed.delegate(http, approver, agent),
    )
    http.close()
    good_claims = read_claims(await testbed.fetch_console_token(APPROVER, BREAK_GLASS_SCOPE))
    stale_claims = {**good_claims, "auth_time": int(time.time()) - _STALE_SECONDS}
    undated_claims = {name: value for name, value in good_claims.items() if name != "auth_time"}
    return [
        WrongDecider(label="the agent that called", token=delegation.token, expected_refusal=rules.HUMANS_ONLY),
        WrongDecider(
            label="the agent for an administrator", token=admin_delegation, expected_refusal=rules.HUMANS_ONLY
        ),
        WrongDecider(label="the agent for an approver", token=approver_delegation, expected_refusal=_NOT_FOUND_SLUG),
        WrongDecider(label="the agent by itself", token=agent, expected_refusal=rules.HUMANS_ONLY),
        WrongDecider(
            label="the agent for the console",
            token=await testbed.fetch_agent_console_token(delegation.agent),
            expected_refusal=_AUDIENCE_SLUG,
        ),
        WrongDecider(
            label="the agent's name, signed in",
            token=await testbed.fetch_console_token(delegation.agent, BREAK_GLASS_SCOPE),
            expected_refusal=rules.NO_SELF_APPROVAL,
            may_deny=True,
        ),
        WrongDecider(
            label="whoever lent, signed in",
            token=await testbed.fetch_console_token(delegation.user, BREAK_GLASS_SCOPE),
            expected_refusal=rules.NO_SELF_APPROVAL,
            may_deny=True,
        ),
        WrongDecider(
            label="whoever lent",
            token=await testbed.sign_in_user(delegation.user, "proof:write"),
            expected_refusal=rules.CONSOLE_AUDIENCE,
        ),
        WrongDecider(label="an administrator", token=admin, expected_refusal=rules.CONSOLE_AUDIENCE),
        WrongDecider(
            label="an administrator, signed in",
            token=await testbed.fetch_console_token(ADMIN, *SCOPES),
            expected_refusal=rules.APPROVER_GROUP,
        ),
        WrongDecider(label="an approver, not for deciding", token=approver, expected_refusal=_NOT_FOUND_SLUG),
        WrongDecider(
            label="an approver of long ago", token=key.sign(stale_claims), expected_refusal=rules.FRESH_SIGN_IN
        ),
        WrongDecider(
            label="an approver of no known time", token=key.sign(undated_claims), expected_refusal=rules.FRESH_SIGN_IN
        ),
        WrongDecider(
            label="an approver in an agent's hands",
            token=key.sign({**good_claims, "act": {"sub": delegation.agent}}),
            expected_refusal=_AUDIENCE_SLUG,
        ),
        WrongDecider(
            label="an approver's ID token",
            token=await testbed.fetch_id_token(APPROVER),
            expected_refusal=_AUDIENCE_SLUG,
        ),
        WrongDecider(
            label="somebody else, signed in",
            token=await testbed.fetch_console_token("user-1"),
            expected_refusal=_NOT_FOUND_SLUG,
        ),
        WrongDecider(
            label="an approver beside",
            token=await testbed.fetch_console_token(APPROVER_BESIDE, *SCOPES, BREAK_GLASS_SCOPE),
            expected_refusal=_NOT_FOUND_SLUG,
        ),
    ]


async def open_approval_request(testbed: Testbed, delegation: DelegatedToken, text: str) -> str:
    """A question about a call of this person through this agent."""
    http = HttpConnection.for_url(testbed.url, token=delegation.token)
    answer = await http.post("/v1/calls", {"tool": APPROVAL_TOOL, "arguments": {"word": text}})
    http.close()
    if answer.status != 202:
        raise RuntimeError(f"nobody was asked about a call: {answer.status} {answer.body[:500]!r}")
    return str(answer.json()["approval"]["approval_id"])


async def decide_wrongly(testbed: Testbed, request_id: str, deciders: Sequence[WrongDecider]) -> AttemptResult:
    """Each says every word there is, about an approval request that is open all the while."""
    result, before = AttemptResult(), await _count_decisions(testbed)
    # They know the binding, so that it is never the reason why they are refused.
    body = await _read_version(testbed, request_id)
    batch = {"approval_ids": [request_id], "bindings": {request_id: body["binding"]}, **_BODY}
    for each in deciders:
        http = HttpConnection.for_url(testbed.url, token=each.token)
        for action in _ACTIONS:
            if action == "deny" and each.may_deny:
                continue
            answer = await http.post(f"/v1/approvals/{request_id}/{action}", body)
            check_attempt(result, each, action, answer)
        for action in ("approve",) if each.may_deny else ("approve", "deny"):
            answer = await http.post("/v1/approvals/batch", {"decision": action, **batch})
            check_batch_attempt(result, each, action, answer)
        http.close()
    result.accepted_count += int(before != await _count_decisions(testbed))
    return result


def check_attempt(result: AttemptResult, decider: WrongDecider, action: str, answer: HttpResponse) -> None:
    """Count a decision of a wrong decider, and a refusal that does not name the rule against it."""
    result.try_count += 1
    if answer.status < 400:
        result.accepted_count += 1
        result.add_sample(f"{decider.label} could {action}", answer)
    elif action != "break-glass" and read_rule(answer) != decider.expected_refusal:
        result.wrong_reason_count += 1
        result.add_sample(f"{decider.label} could not {action}, but not for {decider.expected_refusal}", answer)


def check_batch_attempt(result: AttemptResult, decider: WrongDecider, action: str, answer: HttpResponse) -> None:
    """In a batch, each decision is refused for itself."""
    result.try_count += 1
    if answer.status < 400 and any(not one.get("refusal_slug") for one in answer.json()["decisions"]):
        result.accepted_count += 1
        result.add_sample(f"{decider.label} could {action} several", answer)


async def decide_as_approvers(testbed: Testbed, delegation: DelegatedToken) -> list[str]:
    """The positive control: those who may, each in their own way. What of it was refused."""
    request_ids = {
        action: await open_approval_request(testbed, delegation, action)
        for action in ("approve", "deny", "glass", "page yes", "page no")
    }
    batch_ids = [await open_approval_request(testbed, delegation, f"batch {number}") for number in range(2)]
    approver = HttpConnection.for_url(testbed.url, token=await testbed.fetch_console_token(APPROVER))
    versions = {each: await _read_version(testbed, each) for each in (*request_ids.values(), *batch_ids)}
    responses = {
        "an approver's yes": (
            await approver.post(f"/v1/approvals/{request_ids['approve']}/approve", versions[request_ids["approve"]]),
            "approved",
        ),
        "an approver's no": (await approver.post(f"/v1/approvals/{request_ids['deny']}/deny", _BODY), "denied"),
    }
    for name, state in zip(BREAK_GLASS_USERS, ("open", "approved"), strict=True):
        glazier = HttpConnection.for_url(testbed.url, token=await testbed.fetch_console_token(name, BREAK_GLASS_SCOPE))
        responses[f"{name} breaks the glass"] = (
            await glazier.post(f"/v1/approvals/{request_ids['glass']}/break-glass", versions[request_ids["glass"]]),
            state,
        )  # fmt: skip
        glazier.close()
    failures = [
        f"{label}: {answer.status} {answer.body[:200]!r}"
        for label, (answer, state) in responses.items()
        if answer.status != 200 or answer.json()["state"] != state
    ]
    bindings = {each: versions[each]["binding"] for each in batch_ids}
    several = {"approval_ids": batch_ids, "bindings": bindings, "decision": "approve", "vary": ["word"], **_BODY}
    batch = await approver.post("/v1/approvals/batch", several)
    if batch.status != 200 or {decision["state"] for decision in batch.json()["decisions"]} != {"approved"}:
        failures.append(f"an approver's yes to several: {batch.status} {batch.body[:200]!r}")
    failures += await _decide_on_pages(
        testbed, approver, {"approve": request_ids["page yes"], "deny": request_ids["page no"]}
    )
    approver.close()
    return failures


async def _read_version(testbed: Testbed, request_id: str) -> dict[str, str]:
    """Build a decision's body with the binding that an approver reads."""
    http = HttpConnection.for_url(testbed.url, token=await testbed.fetch_console_token(APPROVER))
    approval = (await http.get(f"/v1/approvals/{request_id}")).json()
    http.close()
    return {"binding": str(approval["binding"]), **_BODY}


async def _decide_on_pages(testbed: Testbed, approver: HttpConnection, request_ids: Mapping[str, str]) -> list[str]:
    """The same with the forms of the console, in a browser of the approver's."""
    session = await testbed.create_session(APPROVER)
    token, http, failures = await fetch_form_token(testbed.url, session), HttpConnection.for_url(testbed.url), []
    for action, request_id in request_ids.items():
        approval = (await approver.get(f"/v1/approvals/{request_id}")).json()
        form, values = {"binding": approval["binding"], **_BODY}, {"approval_id": request_id}
        endpoint = build_form_endpoint(testbed.url, f"{APPROVAL_PATH}/{action}", token, form, values)
        answer = await endpoint.send_token(http, session)
        state_after = (await approver.get(f"/v1/approvals/{request_id}")).json()["state"]
        if answer.status != 303 or state_after == "open":
            failures.append(f"an approver's {action} on a page: {answer.status}, {state_after}")
    http.close()
    return failures


async def _count_decisions(testbed: Testbed) -> int:
    """How often anybody was heard here."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(testbed.postgres.dsn)
    try:
        return int(await connection.fetchval(_DECISION_COUNT, TENANT))
    finally:
        await connection.close()
