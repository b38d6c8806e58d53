"""Many agents for many people at once: anyone who the upstream saw must be anyone who called.

Every call is known three times: to the client that made it, to the upstream that was shown a credential for it, and
to the gateway's own audit entry.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

import asyncpg
import orjson

from deputize.core.errors import CallNotFound, HumanTaskNotFound
from proofs.confused_deputy.endpoints import EndpointCatalog
from proofs.confused_deputy.refusals import read_slug
from proofs.confused_deputy.testbed import OTHER_TENANT, TENANT, Testbed
from proofs.kit.http_client import HttpConnection, HttpResponse
from proofs.kit.upstream_server import CREDENTIALS_FILE

_AT_ONCE = 24
_NOT_THERE = frozenset({CallNotFound.spec.slug, HumanTaskNotFound.spec.slug})
_STATES = """
    select k.id::text as id, k.state, owner_epoch, cancel_requested_at, a.state as asked,
           (select count(*) from deputize.votes v where v.tenant = a.tenant and v.id = a.id) as voices
    from deputize.calls k left join deputize.approvals a on a.tenant = k.tenant and a.call_id = k.id
    where k.id = any($1::uuid[])
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class DelegatedToken:
    """A person's authority in an agent's hands."""

    tenant: str
    user: str
    agent: str
    token: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DelegatedCall:
    delegation: DelegatedToken
    tool: str
    id: str
    status: int
    reported_identity: tuple[str, str] | None
    """Whom the answer says the upstream took the caller for."""


@dataclass(kw_only=True, slots=True)
class DelegationFindings:
    call_count: int = 0
    pair_count: int = 0
    look_count: int = 0
    minted_tokens: dict[str, str] = field(default_factory=dict)
    """Every credential the upstream was shown, by its call."""
    mismatch_counts: Counter[str] = field(default_factory=Counter)
    samples: list[str] = field(default_factory=list)
    longest_seconds: float = 0.0

    def add_mismatch(self, what: str, call: str, details: object) -> None:
        self.mismatch_counts[what] += 1
        if self.mismatch_counts[what] <= 3:
            self.samples.append(f"{what}: call {call}: {details}")


async def delegate_all(testbed: Testbed, users: dict[str, str], agents: dict[str, str]) -> list[DelegatedToken]:
    """Every agent gets every user's authority, each by an exchange of its own."""
    delegations: list[DelegatedToken] = []
    pending = iter(list(product(users.items(), agents.items())))

    async def run_lane() -> None:
        http = HttpConnection.for_url(testbed.url)
        for (user, subject), (agent, actor) in pending:
            token = await testbed.delegate(http, subject, actor)
            delegations.append(DelegatedToken(tenant=TENANT, user=user, agent=agent, token=token))
        http.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(run_lane())
    return delegations


async def run_calls(testbed: Testbed, delegations: Sequence[DelegatedToken], *, seed: int = 1) -> list[DelegatedCall]:
    """Each hand calls both tools, all mixed up, many at once."""
    planned_calls = list(product(delegations, ("whoami_upstream", "keyed")))
    random.Random(seed).shuffle(planned_calls)
    pending, results = iter(planned_calls), list[DelegatedCall]()

    async def run_lane() -> None:
        http = HttpConnection.for_url(testbed.url)
        for delegation, tool in pending:
            results.append(await _send_call(http, delegation, tool))
        http.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(run_lane())
    return results


async def _send_call(http: HttpConnection, delegation: DelegatedToken, tool: str, **more: str) -> DelegatedCall:
    request = {"tool": f"deputy.{tool}", "arguments": {"word": f"{delegation.user} {delegation.agent}"}, **more}
    answer = await http.send(
        "POST", "/v1/calls", headers={"authorization": f"Bearer {delegation.token}"}, body=orjson.dumps(request)
    )
    payload = answer.json()
    reported_identity = None
    if answer.status == 200 and tool == "whoami_upstream":
        reported_identity = (payload["result"]["user"], payload["result"]["agent"])
    return DelegatedCall(
        delegation=delegation,
        tool=tool,
        id=payload.get("call_id", ""),
        status=answer.status,
        reported_identity=reported_identity,
    )


async def judge_calls(testbed: Testbed, calls: Sequence[DelegatedCall]) -> DelegationFindings:
    findings = judge_credentials(calls, _read_credentials(testbed), secrets=testbed.secrets, url=testbed.url)
    check_entries(findings, calls, await _fetch_entries(testbed))
    return findings


def judge_credentials(
    calls: Sequence[DelegatedCall], credentials: Iterable[dict[str, Any]], *, secrets: Mapping[str, str], url: str
) -> DelegationFindings:
    """Compare each call with what the upstream was shown for it; `secrets` are those of the tenants."""
    findings = DelegationFindings(
        call_count=len(calls),
        pair_count=len({(each.delegation.tenant, each.delegation.user, each.delegation.agent) for each in calls}),
    )
    records = defaultdict[str, list[dict[str, Any]]](list)
    for record in credentials:
        records[record["call"]].append(record)
    for call in calls:
        if call.status != 200:
            findings.add_mismatch("not answered", call.id, call.status)
            continue
        if len(records[call.id]) != 1:
            findings.add_mismatch("not exactly one request upstream", call.id, len(records[call.id]))
            continue
        if call.tool == "keyed":
            if records[call.id][0]["shown"] != {"x-api-key": secrets[call.delegation.tenant]}:
                findings.add_mismatch("another tenant's secret", call.id, call.delegation.tenant)
        else:
            _check_credential(findings, call, records[call.id][0], f"{url}/t/{call.delegation.tenant}")
    _check_reuse(findings, records)
    return findings


async def queue_calls(testbed: Testbed, delegations: Sequence[DelegatedToken]) -> list[DelegatedCall]:
    """Each hand has one call queued, which no one carries, or here also one that people are asked about."""
    http, results = HttpConnection.for_url(testbed.url), list[DelegatedCall]()
    for number, delegation in enumerate(delegations):
        results.append(
            await _send_call(
                http, delegation, "plead" if delegation.tenant == TENANT and number % 2 else "look", mode="async"
            )
        )
        if results[-1].status != 202:
            raise RuntimeError(f"a call was not queued: {results[-1].status}")
    http.close()
    return results


async def try_foreign_calls(
    testbed: Testbed,
    endpoints: EndpointCatalog,
    calls: Sequence[DelegatedCall],
    findings: DelegationFindings,
    *,
    most: int,
) -> int:
    """Everybody looks at calls made for someone else, or for the same person by another agent, and tries to have them
    stopped, made again or sent back, at every interface that takes a call's id. Returns how often.
    """
    try_count, states_before = 0, await _fetch_states(testbed, calls)
    http = HttpConnection.for_url(testbed.url)
    for call, other in pairwise(calls[:most]):
        own, other_delegation = call.delegation, other.delegation
        if (own.tenant, own.user, own.agent) == (
            other_delegation.tenant,
            other_delegation.user,
            other_delegation.agent,
        ):
            continue
        for endpoint in endpoints.list_about_call(other.id):
            answer = await endpoint.send_token(http, own.token)
            try_count += 1
            check_foreign_answer(findings, other.id, f"{own.user} {own.agent} at {endpoint.name}", answer)
    http.close()
    check_states(findings, states_before, await _fetch_states(testbed, calls))
    return try_count


def check_foreign_answer(findings: DelegationFindings, call_id: str, attempt: str, answer: HttpResponse) -> None:
    """To anybody but its caller, a call is not there."""
    if read_slug(answer) not in _NOT_THERE:
        details = f"{attempt}: {answer.status} {answer.body[:200]!r}"
        findings.add_mismatch("another's call was shown", call_id, details)


def check_states(
    findings: DelegationFindings, before: Mapping[str, tuple[Any, ...]], after: Mapping[str, tuple[Any, ...]]
) -> None:
    """What others tried has changed no call, and removed none."""
    for call_id, state in before.items():
        if after.get(call_id) != state:
            findings.add_mismatch("another's call was changed", call_id, f"{state} {after.get(call_id)}")


async def _fetch_states(testbed: Testbed, calls: Sequence[DelegatedCall]) -> dict[str, tuple[Any, ...]]:
    """Reads leave no row, and cannot be changed either."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(testbed.postgres.dsn)
    try:
        ids = [each.id for each in calls]
        rows = await connection.fetch(_STATES, ids)
    finally:
        await connection.close()
    return {row["id"]: tuple(row) for row in rows}


def _check_credential(findings: DelegationFindings, call: DelegatedCall, record: dict[str, Any], issuer: str) -> None:
    delegation, identity = call.delegation, record["who"]
    findings.minted_tokens[call.id] = record["shown"].get("authorization", "").removeprefix("Bearer ")
    actor = identity.get("act") or {}
    if (identity.get("sub"), actor.get("sub")) != (delegation.user, delegation.agent):
        findings.add_mismatch(
            "another's credential", call.id, f"{identity.get('sub')} {actor} for {delegation.user} {delegation.agent}"
        )
    elif call.reported_identity != (delegation.user, delegation.agent):
        findings.add_mismatch("another's answer", call.id, call.reported_identity)
    elif identity["iss"] != issuer:
        findings.add_mismatch("another tenant's issuer", call.id, identity["iss"])
    else:
        findings.longest_seconds = max(findings.longest_seconds, identity["exp"] - identity["iat"])


def _check_reuse(findings: DelegationFindings, records: dict[str, list[dict[str, Any]]]) -> None:
    """A credential belongs to one call."""
    calls_by_token = defaultdict[str, set[str]](set)
    for call, call_records in records.items():
        for record in call_records:
            if "jti" in record["who"]:
                calls_by_token[record["who"]["jti"]].add(call)
    for token_id, call_ids in calls_by_token.items():
        if len(call_ids) > 1:
            findings.add_mismatch("one credential for several calls", token_id, len(call_ids))


async def _fetch_entries(testbed: Testbed) -> dict[str, dict[str, Any]]:
    connection: asyncpg.Connection[Any] = await asyncpg.connect(testbed.postgres.dsn)
    try:
        rows = await connection.fetch(
            "select call_id::text, entry from deputize.audit_entries where call_id is not null and tenant = any($1)",
            [TENANT, OTHER_TENANT],
        )
    finally:
        await connection.close()
    return {call: orjson.loads(entry) for call, entry in rows}


def check_entries(
    findings: DelegationFindings, calls: Sequence[DelegatedCall], entries: Mapping[str, Mapping[str, Any]]
) -> None:
    """The gateway's own word: its entry of each call names the same two, under names that only it can resolve."""
    names: dict[tuple[str, str], str] = {}
    for call in calls:
        caller_names = entries.get(call.id, {}).get("caller", [])
        for subject, pseudonym in zip((call.delegation.user, call.delegation.agent), caller_names, strict=False):
            if names.setdefault((call.delegation.tenant, subject), pseudonym) != pseudonym:
                findings.add_mismatch("another's entry", call.id, subject)
        if call.status == 200 and len(caller_names) != 2:
            findings.add_mismatch("no entry with both names", call.id, len(caller_names))
    if len(set(names.values())) != len(names):
        findings.add_mismatch("two subjects under one name", "", len(names))


def _read_credentials(testbed: Testbed) -> Iterator[dict[str, Any]]:
    for line in (testbed.records / CREDENTIALS_FILE).read_bytes().splitlines():
        yield orjson.loads(line)
