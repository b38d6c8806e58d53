"""Who can make the gateway act for someone it should not act for: tokens that are wrong, borrowed, or taken back.

A real OpenID provider signs people in. Every bad token that can be made from its good ones is shown at every interface
of a running gateway. Many agents call for many people at once, and the system behind the tools says whom it saw.
Everybody who must not decide about what people are asked tries to. In the end every place that outlives a call is
searched for tokens and secrets.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import asyncpg

from proofs.confused_deputy.approval_attempts import (
    AttemptResult,
    WrongDecider,
    create_wrong_deciders,
    decide_as_approvers,
    decide_wrongly,
    open_approval_request,
)
from proofs.confused_deputy.bad_tokens import BadToken
from proofs.confused_deputy.console_pages import fetch_form_token, list_page_endpoints, try_tokens_on_pages
from proofs.confused_deputy.delegated_calls import (
    DelegatedToken,
    DelegationFindings,
    delegate_all,
    judge_calls,
    queue_calls,
    run_calls,
    try_foreign_calls,
)
from proofs.confused_deputy.endpoints import (
    APPROVAL_ENDPOINTS,
    EndpointCatalog,
    TokenEndpoint,
    TryResult,
    find_shut_endpoints,
    try_all,
    try_misplaced,
)
from proofs.confused_deputy.escalation_attempts import try_escalations
from proofs.confused_deputy.secret_search import Search, SearchResult
from proofs.confused_deputy.seed_data import CHECKPOINT, READ_TOOL, WRITE_TOOL, SeedData, create_seed_data
from proofs.confused_deputy.testbed import (
    ADMIN,
    OTHER_TENANT,
    POLICIES,
    SCOPES,
    SERVER_NAME,
    SWITCHED_TOOL,
    TENANT,
    Testbed,
    build_exchange_form,
    list_request_paths,
    start_testbed,
)
from proofs.confused_deputy.token_collection import (
    EXPIRY_SECONDS,
    collect_bad_tokens,
    collect_withdrawn,
    create_short_lived,
    revoke_tokens,
)
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.http_client import HttpConnection
from proofs.kit.idp.install import CannotInstall
from proofs.kit.jws import read_claims
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox

NAME = "confused_deputy"
PROMISE = "No token opens a door it is not for, no call acts as anybody else, and no secret stays behind."

# Whatever else a token is tried at, it is tried where calls come in.
_CALLS_ENDPOINT = "POST /v1/calls"
_ENDPOINTS_EACH = 3
_MINTED_SAMPLE = 5
_UNUSED_SECRET = "nobody/key"
_SERVER, _OF_SERVERS = "/v1/servers/{name}", ("", "/test", "/changes", "/changes/decide", "/tools", "/effects")
_ONE_APPROVAL, _BODY = "POST /v1/approvals/{approval_id}", {"reason": "seen"}


_TRACES = """
    select registry, policy, revocation,
           (select count(*) from deputize.calls where tenant = $1),
           (select count(*) from deputize.grants where tenant = $1),
           (select count(*) from deputize.secrets where tenant = $1),
           (select md5(string_agg(concat_ws(' ', id, state, owner_epoch, cancel_requested_at), ',' order by id))
            from deputize.calls where tenant = $1),
           (select md5(string_agg(concat_ws(' ', id, state), ',' order by id))
            from deputize.human_tasks where tenant = $1),
           (select md5(string_agg(concat_ws(' ', id, state, level), ',' order by id))
            from deputize.approvals where tenant = $1),
           (select count(*) from deputize.votes where tenant = $1),
           (select md5(string_agg(concat_ws(' ', server, item, digest, state, decided_by), ',' order by item, digest))
            from deputize.server_changes where tenant = $1),
           (select count(*) from deputize.server_pins where tenant = $1),
           (select count(*) from deputize.server_effects where tenant = $1),
           (select md5(string_agg(concat_ws(' ', id, attempts, due_at, dead_at), ',' order by id))
            from deputize.deliveries where tenant = $1)
    from deputize.epochs where tenant = $1
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Participants:
    """Everybody who takes part, and what they hold."""

    admin: str
    users: dict[str, str]
    agents: dict[str, str]
    delegations: list[DelegatedToken]


async def prove(sandbox: Sandbox) -> Verdict:
    try:
        testbed = await start_testbed(
            sandbox, users=sandbox.pick_size(quick=10, full=50), agents=sandbox.pick_size(quick=20, full=200)
        )
    except CannotInstall as reason:
        return Verdict(figures={}, notes=[str(reason)])
    participants, seed_data = await asyncio.gather(_create_participants(testbed), create_seed_data(testbed))
    calls = await run_calls(testbed, participants.delegations)
    findings = await judge_calls(testbed, calls)
    # Sorted, neighbours are agents of one person more often than not.
    sorted_calls = sorted(calls, key=lambda call: (call.delegation.tenant, call.delegation.user, call.delegation.agent))
    session = await testbed.create_session(ADMIN)
    endpoints = await _build_endpoints(testbed, participants, seed_data, session)
    page_endpoints = [endpoint for endpoint in endpoints.all if endpoint.cookie]
    # Signed in just now: what changes authority needs a sign-in of the last five minutes.
    failures = await find_shut_endpoints(
        testbed.url,
        endpoints.all,
        await testbed.sign_in_user(ADMIN, *SCOPES),
        _build_special_tokens(participants, page_endpoints, session),
        seed_data.tenant_marks,
    )
    findings.look_count = await try_foreign_calls(
        testbed, endpoints, sorted_calls[::2], findings, most=sandbox.pick_size(quick=44, full=1000)
    )
    runs = await queue_calls(testbed, _pick_neighbours(participants.delegations, sandbox.pick_size(quick=40, full=400)))
    findings.look_count += await try_foreign_calls(testbed, endpoints, runs, findings, most=len(runs))
    sandbox.log(
        f"{findings.call_count} calls of {findings.pair_count} pairs: "
        f"{dict(findings.mismatch_counts) or 'each for whom it was made'}"
    )
    short_lived, expires_at = (
        await create_short_lived(testbed, *_pick_first(participants)),
        asyncio.get_running_loop().time() + EXPIRY_SECONDS,
    )
    minted_tokens = list(findings.minted_tokens.values())[:_MINTED_SAMPLE]
    bad_tokens = await collect_bad_tokens(
        testbed, participants.delegations[0], minted_tokens, frozenset(door.name for door in page_endpoints)
    )
    try_result = TryResult()
    await _try_tokens(testbed, endpoints.all, bad_tokens, try_result, seed_data.tenant_marks)
    wrong_deciders, decision_result, refusals = await _try_deciding(testbed, participants.delegations[0])
    revoked_tokens, never_valid = await revoke_tokens(testbed, next(iter(participants.agents)))
    await asyncio.sleep(max(0.0, expires_at - asyncio.get_running_loop().time()))
    revoked_tokens = [*revoked_tokens, short_lived]
    await _try_tokens(testbed, endpoints.all, revoked_tokens, try_result, seed_data.tenant_marks)
    escalation_count, escalations = await try_escalations(
        testbed, *_pick_first(participants), await testbed.fetch_agent_token("agent-beside")
    )
    await try_misplaced(testbed.url, endpoints.all, participants.admin, session, try_result)
    await try_tokens_on_pages(testbed.url, page_endpoints, session, participants.admin, try_result)
    sandbox.log(
        f"{len(bad_tokens) + len(revoked_tokens)} bad tokens, {try_result.try_count} tries at "
        f"{len(endpoints.all)} endpoints: {try_result.accepted_count} let in"
    )
    search_result = await _search_secrets(testbed, bad_tokens, findings)
    sandbox.log(
        f"searched {search_result.table_count} tables and more for {search_result.pattern_count} spellings: "
        f"{len(search_result.matches)} found"
    )
    controls = await _run_controls(testbed, endpoints.all, bad_tokens, participants, wrong_deciders)
    if sandbox.full:
        # Last, for from here on every token of before is over; and it takes half a minute.
        await testbed.gateway.restart()
        revoked_tokens += await collect_withdrawn(testbed)
        await _try_tokens(
            testbed,
            endpoints.all,
            [each for each in revoked_tokens if each.family == "withdrawn"],
            try_result,
            seed_data.tenant_marks,
        )
    try_result.try_count, try_result.accepted_count = (
        try_result.try_count + escalation_count,
        try_result.accepted_count + len(escalations),
    )
    try_result.samples += (f"widened: {each}" for each in escalations)
    return build_verdict(
        findings,
        try_result,
        decision_result,
        search_result,
        [endpoint.name for endpoint in endpoints.all],
        endpoints.unguarded_routes,
        [*bad_tokens, *revoked_tokens],
        [*failures, *refusals, *never_valid],
        controls,
    )


async def _create_participants(testbed: Testbed) -> Participants:
    users = {f"user-{number}": "" for number in range(testbed.sandbox.pick_size(quick=10, full=50))}
    agents = {f"agent-{number}": "" for number in range(testbed.sandbox.pick_size(quick=20, full=200))}
    for name in users:
        users[name] = await testbed.sign_in_user(name, "proof:write")
    for name in agents:
        agents[name] = await testbed.fetch_agent_token(name)
    testbed.sandbox.log(f"{len(users)} people signed in, {len(agents)} agents have their tokens")
    delegations = await delegate_all(testbed, users, agents)
    http = HttpConnection.for_url(testbed.url)
    foreign_token = await testbed.delegate(
        http, await testbed.sign_in_user("user-beside", "proof:write"), await testbed.fetch_agent_token("agent-beside")
    )
    http.close()
    # As many calls from beside as it takes to meet the others everywhere.
    foreign_delegations = [
        DelegatedToken(tenant=OTHER_TENANT, user="user-beside", agent="agent-beside", token=foreign_token)
    ] * (len(delegations) // 4)
    testbed.sandbox.log(f"{len(delegations)} delegations made")
    admin = await testbed.sign_in_user(ADMIN, *SCOPES)
    return Participants(
        admin=admin,
        users=users,
        agents=agents,
        delegations=[*delegations, *foreign_delegations],
    )


async def _build_endpoints(
    testbed: Testbed, participants: Participants, seed_data: SeedData, session: str
) -> EndpointCatalog:
    """Every interface, with requests that do something where a good token makes them."""
    http = HttpConnection.for_url(testbed.url, token=participants.admin)
    call_request = {"tool": WRITE_TOOL, "arguments": {"word": "at the doors"}}
    document = (await http.get("/openapi.json")).json()
    tool = (await http.get(f"/v1/tools/{READ_TOOL}")).json()
    digest = (await http.get(f"/v1/tools/{WRITE_TOOL}?version=1.0.0")).json()["digest"]
    user, agent = _pick_first(participants)
    grant, page_grant = [read_claims(await testbed.delegate(http, user, agent))["grants"][0] for _ in range(2)]
    approval = (await http.get(f"/v1/approvals/{seed_data.approval_id}")).json()
    entry_id = (await http.get("/v1/audit")).json()["entries"][0]["id"]
    undo_plan = (await http.post("/v1/undo/plan", {"call_id": seed_data.ended_call})).json()
    http.close()
    contract = {**tool["contract"], "version": "1.0.1", "handler": {"target": "tools.deputy:look"}}
    policies = {"files": [{"path": "policies/proof.cedar", "text": POLICIES}]}
    call = {"call_id": seed_data.ended_call}
    resolution = {"outcome": "happened", "reason": "seen"}
    bodies: dict[str, Any] = {
        _CALLS_ENDPOINT: call_request,
        "POST /v1/calls/batch": {"calls": [call_request]},
        "POST /v1/undo/plan": call,
        "POST /v1/undo": {**call, "digest": undo_plan["digest"]},
        "POST /v1/undo/requests": call,
        "POST /v1/tools": contract,
        "rpc calls.create": call_request,
        "rpc calls.get": call,
        "rpc calls.cancel": call,
        "rpc tools.search": {"q": "effect"},
        "rpc tools.get": {"name": WRITE_TOOL},
        "rpc calls.retry": call,
        "rpc tools.list": {},
        "rpc tools.negotiate": {"name": WRITE_TOOL, "version": "*"},
        "POST /v1/tools/{name}/negotiation": {"version": "*"},
        "rpc surface.get": {},
        "POST /v1/calls/{call_id}/rollback": {"checkpoint": CHECKPOINT},
        "POST /v1/human-tasks/{task_id}/resolve": resolution,
        "POST /v1/tools/{name}/versions/{version}/state": {"state": "available"},
        "PUT /v1/tools/{name}/versions/{version}/deprecation": {},
        "POST /v1/tools/{name}/versions/{version}/tests": {
            "report": {"digest": digest, "cases": [{"verdict": "failed"}]}
        },
        "POST /v1/revocations": {"kind": "token", "value": "nobody's"},
        "POST /v1/erasures": {"user": "nobody"},
        "POST /v1/holds": {"user": "somebody", "reason": "none"},
        "POST /v1/secrets": {"name": _UNUSED_SECRET, "value": "not a secret"},
        "PUT /v1/policies": policies,
        "POST /v1/policies/check": policies,
        "POST /v1/policies/backtest": policies,
        "POST /v1/policies/simulate": {"tool": READ_TOOL, "caller": {"user": "user-0"}, "arguments": {"word": "a"}},
        "POST /v1/switches": {"kind": "tool", "value": SWITCHED_TOOL, "off": True},
        **{
            f"{_ONE_APPROVAL}/{word}": {"binding": approval["binding"], **_BODY}
            for word in ("approve", "deny", "break-glass")
        },
        "POST /v1/approvals/batch": {"approval_ids": [seed_data.approval_id], "decision": "deny", **_BODY},
        f"POST {_SERVER}/changes/decide": {**seed_data.server_change, "decision": "reject", **_BODY},
        f"POST {_SERVER}/effects": {"tools": [{"tool": "nothing", "digest": digest, "effects": "read"}]},
        "POST /oauth/token subject_token": {**build_exchange_form(), "actor_token": agent},
        "POST /oauth/token actor_token": {**build_exchange_form(), "subject_token": user},
    }
    values = {
        **call,
        "GET /v1/flows/{call_id} call_id": seed_data.flow_call,
        "name": WRITE_TOOL,
        "version": "1.0.0",
        "q": "effect",
        "format": "anthropic",
        "grant_id": grant,
        "task_id": seed_data.task_id,
        "approval_id": seed_data.approval_id,
        "delivery_id": seed_data.delivery_id,
        "erasure_id": seed_data.erasure_id,
        "hold_id": seed_data.hold_id,
        "entry_id": entry_id,
        "tenant": TENANT,
        "tile_path": "entries/000.p/1",
        "POST /v1/calls/{call_id}/cancel call_id": seed_data.queued_call,
        "POST /v1/calls/{call_id}/retry call_id": seed_data.canceled_call,
        "POST /v1/calls/{call_id}/rollback call_id": seed_data.checkpoint_call,
        "DELETE /v1/secrets name": _UNUSED_SECRET,
        **{f"{verb} {_SERVER}{rest} name": SERVER_NAME for verb in ("GET", "POST") for rest in _OF_SERVERS},
    }
    page_values = {
        **values,
        "server": SERVER_NAME,
        "grant_id": page_grant,
        "flow_id": seed_data.flow_call,
        "open_call": seed_data.open_call,
        "canceled_call": seed_data.canceled_call,
        "code": "E3101",
        "binding": approval["binding"],
        "digest": undo_plan["digest"],
    }
    form_token = await fetch_form_token(testbed.url, session)
    return EndpointCatalog(document, values, bodies, list_page_endpoints(testbed.url, form_token, page_values))


def _pick_neighbours(delegations: Sequence[DelegatedToken], most: int) -> list[DelegatedToken]:
    """Agents of one person beside each other, and where people and tenants meet."""
    unique_delegations = {
        (delegation.tenant, delegation.user, delegation.agent): delegation for delegation in delegations
    }
    sorted_delegations = [unique_delegations[name] for name in sorted(unique_delegations)]
    return [*sorted_delegations[: most // 2], *sorted_delegations[-(most - most // 2) :]]


def _pick_first(participants: Participants) -> tuple[str, str]:
    """One person's token and one agent's."""
    return next(iter(participants.users.values())), next(iter(participants.agents.values()))


def _build_special_tokens(
    participants: Participants, page_endpoints: Sequence[TokenEndpoint], session: str
) -> dict[str, str]:
    """Where a good token is another than the administrator's."""
    agent = next(iter(participants.agents.values()))
    return {
        "POST /oauth/token actor_token": agent,
        **{endpoint.name: session for endpoint in page_endpoints},
    }


async def _try_deciding(
    testbed: Testbed, delegation: DelegatedToken
) -> tuple[list[WrongDecider], AttemptResult, list[str]]:
    """Those who must not decide, what came of their trying, and what those who may were refused."""
    deciders = await create_wrong_deciders(testbed, delegation)
    decision_result = await decide_wrongly(
        testbed, await open_approval_request(testbed, delegation, "for nobody"), deciders
    )
    refusals = await decide_as_approvers(testbed, delegation)
    testbed.sandbox.log(
        f"{len(deciders)} who must not decide tried {decision_result.try_count} times: "
        f"{decision_result.accepted_count} were heard"
    )
    return deciders, decision_result, refusals


async def _try_tokens(
    testbed: Testbed,
    endpoints: Sequence[TokenEndpoint],
    bad_tokens: Sequence[BadToken],
    try_result: TryResult,
    marks: Sequence[str],
) -> None:
    """Bad tokens at interfaces, and what the world looks like before and after: nothing may have come of them."""
    traces_before = await _read_traces(testbed)
    await try_all(testbed.url, _pair_tokens(testbed.sandbox, endpoints, bad_tokens), try_result, marks=marks)
    try_result.effect_count += int(traces_before != await _read_traces(testbed))


def _pair_tokens(
    sandbox: Sandbox, endpoints: Sequence[TokenEndpoint], bad_tokens: Sequence[BadToken]
) -> list[tuple[TokenEndpoint, BadToken]]:
    """All at all; in the quick form a few each, where calls come in among them, and real tokens still at all. What was
    handed on for deciding is tried wherever people decide.
    """
    calls_endpoint = next(endpoint for endpoint in endpoints if endpoint.name == _CALLS_ENDPOINT)
    endpoint_cycle, approval_endpoints = (
        cycle(endpoints),
        [door for door in endpoints if door.name in APPROVAL_ENDPOINTS],
    )
    pairs: list[tuple[TokenEndpoint, BadToken]] = []
    for each in bad_tokens:
        is_real = each.is_foreign or each.family in ("minted", "revoked", "ended", "withdrawn", "console")
        chosen_endpoints = (
            endpoints if sandbox.full or is_real else [calls_endpoint, *islice(endpoint_cycle, _ENDPOINTS_EACH - 1)]
        )
        chosen_endpoints = [*chosen_endpoints, *approval_endpoints] if each.family == "handed on" else chosen_endpoints
        pairs += (
            (door, each)
            for door in {door.name: door for door in chosen_endpoints}.values()
            if door.name not in each.valid_at
        )
    return pairs


async def _read_traces(testbed: Testbed) -> tuple[Any, ...]:
    """What only someone with authority could have changed here: effects upstream, calls, delegations, epochs. Keys
    fetched from where a token said count too.
    """
    effects = sum(path in ("/effect", "/trap/jwks", "/trap/cert") for path in list_request_paths(testbed))
    connection: asyncpg.Connection[Any] = await asyncpg.connect(testbed.postgres.dsn)
    try:
        row = await connection.fetchrow(_TRACES, TENANT)
    finally:
        await connection.close()
    return effects, *(row or ())


async def _search_secrets(
    testbed: Testbed, bad_tokens: Sequence[BadToken], findings: DelegationFindings
) -> SearchResult:
    search = Search(testbed)
    search.add_inbound(testbed.inbound, next(iter(testbed.inbound.values())))
    search.add_refused(bad_tokens)
    search.add_minted(findings.minted_tokens)
    search.add_secrets()
    search.add_sessions()
    # Spans leave in batches, every few seconds; a gateway that stops sends what it has.
    await testbed.gateway.restart()
    return await search.search_all()


async def _run_controls(
    testbed: Testbed,
    endpoints: Sequence[TokenEndpoint],
    bad_tokens: Sequence[BadToken],
    participants: Participants,
    deciders: Sequence[WrongDecider],
) -> dict[str, bool]:
    """The same at gateways with one fault each: each must be seen."""
    calls_endpoints = [endpoint for endpoint in endpoints if endpoint.name == _CALLS_ENDPOINT]
    controls: dict[str, bool] = {}
    await restart_as_variant(testbed.gateway, "deputy_any_audience")
    try_result = TryResult()
    await try_all(testbed.url, [(calls_endpoints[0], each) for each in bad_tokens if each.family == "aud"], try_result)
    controls["any audience is ours"] = try_result.accepted_count > 0
    try_result = TryResult()
    await try_all(
        testbed.url,
        [(calls_endpoints[0], each) for each in bad_tokens if each.valid_at == APPROVAL_ENDPOINTS],
        try_result,
    )
    controls["a token for deciding calls"] = try_result.accepted_count > 0
    sample = participants.delegations[: testbed.sandbox.pick_size(quick=24, full=200)]
    await restart_as_variant(testbed.gateway, "deputy_token_passthrough")
    await judge_calls(testbed, await run_calls(testbed, sample))
    search = Search(testbed)
    search.add_inbound(
        {f"{delegation.user} {delegation.agent}": delegation.token for delegation in sample}, participants.admin
    )
    controls["the caller's token is sent upstream"] = bool(await search.search_upstream())
    await restart_as_variant(testbed.gateway, "deputy_cache_by_user")
    findings = await judge_calls(testbed, await run_calls(testbed, sample))
    controls["tokens are remembered by their user"] = findings.mismatch_counts["another's credential"] > 0
    await restart_as_variant(testbed.gateway, "deputy_any_approver")
    ticket = await open_approval_request(testbed, participants.delegations[0], "for anybody")
    controls["anybody decides"] = (await decide_wrongly(testbed, ticket, deciders)).accepted_count > 0
    testbed.sandbox.log(
        f"broken on purpose: {', '.join(f'{name}: {is_caught}' for name, is_caught in controls.items())}"
    )
    return controls


def build_verdict(
    findings: DelegationFindings,
    try_result: TryResult,
    decision_result: AttemptResult,
    search_result: SearchResult,
    endpoint_names: Sequence[str],
    unguarded_routes: Sequence[str],
    bad_tokens: Sequence[BadToken],
    failures: Sequence[str],
    controls: dict[str, bool],
) -> Verdict:
    figures: dict[str, Figure] = {
        "bad_tokens": len({each.token for each in bad_tokens}),
        "endpoints": len(endpoint_names),
        "accepted": try_result.accepted_count,
        "effects": try_result.effect_count,
        "endpoints_shut_to_good_tokens": len(failures),
        "unguarded_routes": len(unguarded_routes),
        "pairs": findings.pair_count,
        "mismatches": findings.mismatch_counts.total(),
        "secrets_found": len(search_result.matches),
        "planted_missed": len(search_result.missed_plants),
        "tries": try_result.try_count,
        "decided_wrongly": decision_result.accepted_count,
        "refused_for_another_reason": decision_result.wrong_reason_count,
        "tries_to_decide": decision_result.try_count,
        "no_answer": try_result.broken_count,
        "calls_for_others": findings.call_count,
        "looks_at_others_calls": findings.look_count,
        "credential_lives_seconds": findings.longest_seconds,
        "span_bytes_searched": search_result.span_bytes,
        "spellings_searched": search_result.pattern_count,
        "tables_searched": search_result.table_count,
    }
    return Verdict(
        figures=figures,
        controls=controls,
        notes=[
            *try_result.samples,
            *decision_result.samples,
            *findings.samples,
            *(f"shut: {each}" for each in failures),
            *unguarded_routes,
            *(f"found: {each}" for each in search_result.matches[:20]),
            *(f"missed: {each}" for each in search_result.missed_plants),
        ],
    )
