"""Who can make the gateway act for somebody it should not act for: tokens that are wrong, borrowed, or taken back.

A real OpenID provider signs people in. Every bad token that can be made from its good ones is shown at every door of a
running gateway. Many agents call for many people at once, and the system behind the tools says whom it saw. Everybody
who must not decide about what people are asked tries to. In the end every place that outlives a call is searched for
tokens and secrets.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import asyncpg

from proofs.deputy.deciding import Decided, Decider, decide_rightly, decide_wrongly, open_ticket, wrong_deciders
from proofs.deputy.doors import DECIDING, Door, Doors, Tried, opened, try_all, try_misplaced
from proofs.deputy.hoard import OVER_SECONDS, gather, short_lived, take_back, withdrawn
from proofs.deputy.pages import form_token, pages, try_pages
from proofs.deputy.pairs import Hand, Judged, call_all, judge, lend_all, meddle, queue_all
from proofs.deputy.search import Search, Searched
from proofs.deputy.site import ADMIN, BESIDE, HERE, POLICIES, SCOPES, SERVER, Site, exchange_form, open_site, received
from proofs.deputy.things import CALLED, CHECKPOINT, SHOWN, Things, furnish
from proofs.deputy.widen import widen
from proofs.kit.bad_tokens import Bad
from proofs.kit.idp.install import CannotInstall
from proofs.kit.jws import claims_of
from proofs.kit.report import Bar, Figure, Verdict
from proofs.kit.variant import restart_as
from proofs.kit.wire import Line
from proofs.kit.world import World

NAME = "confused_deputy"
PROMISE = "No token opens a door it is not for, no call acts as anybody else, and no secret stays behind."

# Whatever else a token is tried at, it is tried where calls come in.
_HOT = "POST /v1/calls"
_DOORS_EACH = 3
_MINTED_TRIED = 5
_NOBODYS = "nobody/key"
_SERVER, _OF_SERVERS = "/v1/servers/{name}", ("", "/test", "/changes", "/changes/decide")
_ONE_APPROVAL, _SAID = "POST /v1/approvals/{ticket_id}", {"reason": "seen"}


_NONE: Bar = ("==", 0)
_NEVER = (
    "accepted", "effects", "no_answer", "doors_shut_to_good_tokens", "unguarded_routes", "mismatches", "secrets_found",
    "planted_missed", "decided_wrongly", "refused_for_another_reason",
)  # fmt: skip
_TRACES = """
    select registry, policy, revocation,
           (select count(*) from deputize.calls where tenant = $1),
           (select count(*) from deputize.grants where tenant = $1),
           (select count(*) from deputize.secrets where tenant = $1),
           (select md5(string_agg(concat_ws(' ', id, state, owner_epoch, cancel_asked), ',' order by id))
            from deputize.calls where tenant = $1),
           (select md5(string_agg(concat_ws(' ', id, state), ',' order by id)) from deputize.tickets where tenant = $1),
           (select md5(string_agg(concat_ws(' ', id, state, level), ',' order by id))
            from deputize.approvals where tenant = $1),
           (select count(*) from deputize.votes where tenant = $1),
           (select md5(string_agg(concat_ws(' ', server, item, digest, state, decided_by), ',' order by item, digest))
            from deputize.server_changes where tenant = $1),
           (select count(*) from deputize.server_pins where tenant = $1),
           (select md5(string_agg(concat_ws(' ', id, attempts, due_at, dead_at), ',' order by id))
            from deputize.deliveries where tenant = $1)
    from deputize.epochs where tenant = $1
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Party:
    """Everybody who takes part, and what they hold."""

    admin: str
    session: str
    """The administrator's, in a browser."""
    users: dict[str, str]
    agents: dict[str, str]
    hands: list[Hand]


async def prove(world: World) -> Verdict:
    try:
        site = await open_site(world, users=world.size(quick=10, full=50), agents=world.size(quick=20, full=200))
    except CannotInstall as reason:
        return Verdict(figures={}, bars={}, notes=[str(reason)])
    party, things = await asyncio.gather(_party(site), furnish(site))
    calls = await call_all(site, party.hands)
    pairs = await judge(site, calls)
    # Sorted, neighbours are agents of one person more often than not.
    beside_each_other = sorted(calls, key=lambda call: (call.hand.tenant, call.hand.user, call.hand.agent))
    doors = await _doors(site, party, things)
    pairs.looks = await meddle(site, doors, beside_each_other[::2], pairs, most=world.size(quick=44, full=1000))
    runs = await queue_all(site, _neighbours(party.hands, world.size(quick=40, full=400)))
    pairs.looks += await meddle(site, doors, runs, pairs, most=len(runs))
    world.say(f"{pairs.calls} calls of {pairs.pairs} pairs: {dict(pairs.wrong) or 'each for whom it was made'}")
    short, ends = await short_lived(site, *_first(party)), asyncio.get_running_loop().time() + OVER_SECONDS
    behind = [door for door in doors.all if door.cookie]
    minted = list(pairs.minted.values())[:_MINTED_TRIED]
    bad = await gather(site, party.hands[0], minted, frozenset(door.name for door in behind))
    shut = await opened(site.url, doors.all, party.admin, _special(party, behind), things.marks)
    tried = Tried()
    await _try(site, doors.all, bad, tried, things.marks)
    wrong, decided, refused = await _deciding(site, party.hands[0])
    gone, never_good = await take_back(site, next(iter(party.agents)))
    await asyncio.sleep(max(0.0, ends - asyncio.get_running_loop().time()))
    gone = [*gone, short]
    await _try(site, doors.all, gone, tried, things.marks)
    wishes, granted = await widen(site, *_first(party), await site.agent("agent-beside"))
    await try_misplaced(site.url, doors.all, party.admin, party.session, tried)
    await try_pages(site.url, behind, party.session, party.admin, tried)
    world.say(
        f"{len(bad) + len(gone)} bad tokens, {tried.tries} tries at {len(doors.all)} doors: {tried.accepted} let in"
    )
    searched = await _search(site, bad, pairs)
    world.say(
        f"searched {searched.tables} tables and more for {searched.needles} spellings: {len(searched.found)} found"
    )
    controls = await _controls(site, doors.all, bad, party, wrong)
    if world.full:
        # Last, for from here on every token of before is over; and it takes half a minute.
        await site.gateway.restart()
        gone += await withdrawn(site)
        await _try(site, doors.all, [each for each in gone if each.family == "withdrawn"], tried, things.marks)
    tried.tries, tried.accepted = tried.tries + wishes, tried.accepted + len(granted)
    tried.samples += (f"widened: {each}" for each in granted)
    return _verdict(
        world, pairs, tried, decided, searched, doors, [*bad, *gone], [*shut, *refused, *never_good], controls
    )  # fmt: skip


async def _party(site: Site) -> Party:
    users = {f"user-{number}": "" for number in range(site.world.size(quick=10, full=50))}
    agents = {f"agent-{number}": "" for number in range(site.world.size(quick=20, full=200))}
    for name in users:
        users[name] = await site.person(name, "proof:write")
    for name in agents:
        agents[name] = await site.agent(name)
    site.world.say(f"{len(users)} people signed in, {len(agents)} agents have their tokens")
    hands = await lend_all(site, users, agents)
    line = Line.to(site.url)
    beside = await site.lend(line, await site.person("user-beside", "proof:write"), await site.agent("agent-beside"))
    line.close()
    # As many calls from beside as it takes to meet the others everywhere.
    neighbours = [Hand(tenant=BESIDE, user="user-beside", agent="agent-beside", token=beside)] * (len(hands) // 4)
    site.world.say(f"{len(hands)} delegations made")
    admin = await site.person(ADMIN, *SCOPES)
    return Party(
        admin=admin, session=await site.session(ADMIN), users=users, agents=agents, hands=[*hands, *neighbours]
    )


async def _doors(site: Site, party: Party, things: Things) -> Doors:
    """Every door, with requests that do something where a good token makes them."""
    line = Line.to(site.url, token=party.admin)
    asked = {"tool": CALLED, "arguments": {"word": "at the doors"}}
    document = (await line.get("/openapi.json")).json()
    shown = (await line.get(f"/v1/tools/{SHOWN}")).json()
    user, agent = _first(party)
    grant = claims_of(await site.lend(line, user, agent))["grants"][0]
    asked_about = (await line.get(f"/v1/approvals/{things.approval}")).json()
    line.close()
    filled = {"form_token": await form_token(site.url, party.session), "binding": asked_about["binding"], **_SAID}
    contract = {**shown["contract"], "version": "1.0.1", "handler": {"target": "tools.deputy:look"}}
    policies = {"files": [{"path": "policies/proof.cedar", "text": POLICIES}]}
    call = {"call_id": things.ended}
    bodies: dict[str, Any] = {
        _HOT: asked, "POST /v1/tools": contract, "rpc calls.create": asked, "rpc calls.get": call,
        "rpc calls.cancel": call, "rpc tools.search": {"q": "effect"}, "rpc tools.get": {"name": CALLED},
        "rpc calls.retry": call, "rpc tools.list": {}, "rpc surface.get": {},
        "POST /v1/calls/{call_id}/rollback": {"checkpoint": CHECKPOINT},
        "POST /v1/tickets/{ticket_id}/resolve": {"outcome": "happened", "reason": "seen"},
        "POST /v1/tools/{name}/versions/{version}/state": {"state": "available"},
        "POST /v1/revocations": {"kind": "token", "value": "nobody's"},
        "POST /v1/secrets": {"name": _NOBODYS, "value": "not a secret"},
        "PUT /v1/policies": policies, "POST /v1/policies/check": policies, "POST /v1/policies/backtest": policies,
        "POST /v1/switches": {"kind": "tool", "value": "nobody.nothing", "off": True},
        **{f"{_ONE_APPROVAL}/{word}": _SAID for word in ("approve", "deny", "break-glass")},
        "POST /v1/approvals/batch": {"tickets": [things.approval], "decision": "deny", **_SAID},
        f"POST {_SERVER}/changes/decide": {**things.change, "decision": "reject", **_SAID},
        "POST /oauth/token subject_token": {**exchange_form(), "actor_token": agent},
        "POST /oauth/token actor_token": {**exchange_form(), "subject_token": user},
    }  # fmt: skip
    known = {
        **call, "name": CALLED, "version": "1.0.0", "q": "effect", "grant_id": grant, "ticket_id": things.ticket,
        "delivery_id": things.delivery, "POST /v1/calls/{call_id}/cancel call_id": things.waiting,
        "POST /v1/calls/{call_id}/retry call_id": things.canceled,
        "POST /v1/calls/{call_id}/rollback call_id": things.halfway, "DELETE /v1/secrets name": _NOBODYS,
        "GET /v1/approvals/{ticket_id} ticket_id": things.approval,
        **{f"{_ONE_APPROVAL}/{word} ticket_id": things.approval for word in ("approve", "deny", "break-glass")},
        **{f"{verb} {_SERVER}{rest} name": SERVER for verb in ("GET", "POST") for rest in _OF_SERVERS},
    }  # fmt: skip
    return Doors(document, known, bodies, pages(site.url, things.approval, filled))


def _neighbours(hands: Sequence[Hand], most: int) -> list[Hand]:
    """Agents of one person beside each other, and where people and tenants meet."""
    every = {(hand.tenant, hand.user, hand.agent): hand for hand in hands}
    ordered = [every[name] for name in sorted(every)]
    return [*ordered[: most // 2], *ordered[-(most - most // 2) :]]


def _first(party: Party) -> tuple[str, str]:
    """One person's token and one agent's."""
    return next(iter(party.users.values())), next(iter(party.agents.values()))


def _special(party: Party, behind: Sequence[Door]) -> dict[str, str]:
    """Where a good token is another than the administrator's."""
    agent = next(iter(party.agents.values()))
    return {"POST /oauth/token actor_token": agent, **{door.name: party.session for door in behind}}


async def _deciding(site: Site, hand: Hand) -> tuple[list[Decider], Decided, list[str]]:
    """Those who must not decide, what came of their trying, and what those who may were refused."""
    wrong = await wrong_deciders(site, hand)
    decided = await decide_wrongly(site, await open_ticket(site, hand, "for nobody"), wrong)
    refused = await decide_rightly(site, hand)
    site.world.say(f"{len(wrong)} who must not decide tried {decided.tries} times: {decided.wrongly} were heard")
    return wrong, decided, refused


async def _try(site: Site, doors: Sequence[Door], bad: Sequence[Bad], tried: Tried, marks: Sequence[str]) -> None:
    """Bad tokens at doors, and what the world looks like before and after: nothing may have come of them."""
    before = await _traces(site)
    await try_all(site.url, _pairs(site.world, doors, bad), tried, marks=marks)
    tried.effects += int(before != await _traces(site))


def _pairs(world: World, doors: Sequence[Door], bad: Sequence[Bad]) -> list[tuple[Door, Bad]]:
    """All at all; in the quick form a few each, where calls come in among them, and real tokens still at all. What was
    handed on for deciding is tried wherever people decide.
    """
    hot = next(door for door in doors if door.name == _HOT)
    around, deciding = cycle(doors), [door for door in doors if door.name in DECIDING]
    pairs: list[tuple[Door, Bad]] = []
    for each in bad:
        real = each.elsewhere or each.family in ("minted", "revoked", "ended", "withdrawn", "console")
        some = doors if world.full or real else [hot, *islice(around, _DOORS_EACH - 1)]
        some = [*some, *deciding] if each.family == "handed on" else some
        pairs += ((door, each) for door in {door.name: door for door in some}.values() if door.name not in each.good_at)
    return pairs


async def _traces(site: Site) -> tuple[Any, ...]:
    """What only somebody with authority could have changed here: effects upstream, calls, delegations, epochs. Keys
    fetched from where a token said count too.
    """
    effects = sum(path in ("/effect", "/trap/jwks", "/trap/cert") for path in received(site))
    connection: asyncpg.Connection[Any] = await asyncpg.connect(site.postgres.dsn)
    try:
        found = await connection.fetchrow(_TRACES, HERE)
    finally:
        await connection.close()
    return effects, *(found or ())


async def _search(site: Site, bad: Sequence[Bad], pairs: Judged) -> Searched:
    search = Search(site)
    search.add_inbound(site.inbound, next(iter(site.inbound.values())))
    search.add_refused(bad)
    search.add_minted(pairs.minted)
    search.add_secrets()
    search.add_sessions()
    # Spans leave in batches, every few seconds; a gateway that stops sends what it has.
    await site.gateway.restart()
    return await search.run()


async def _controls(
    site: Site, doors: Sequence[Door], bad: Sequence[Bad], party: Party, wrong: Sequence[Decider]
) -> dict[str, bool]:
    """The same at gateways with one fault each: each must be seen."""
    hot = [door for door in doors if door.name == _HOT]
    controls: dict[str, bool] = {}
    await restart_as(site.gateway, "deputy_any_audience")
    tried = Tried()
    await try_all(site.url, [(hot[0], each) for each in bad if each.family == "aud"], tried)
    controls["any audience is ours"] = tried.accepted > 0
    tried = Tried()
    await try_all(site.url, [(hot[0], each) for each in bad if each.good_at == DECIDING], tried)
    controls["a token for deciding calls"] = tried.accepted > 0
    few = party.hands[: site.world.size(quick=24, full=200)]
    await restart_as(site.gateway, "deputy_forwards")
    await judge(site, await call_all(site, few))
    search = Search(site)
    search.add_inbound({f"{hand.user} {hand.agent}": hand.token for hand in few}, party.admin)
    controls["the caller's token is sent upstream"] = bool(await search.upstream())
    await restart_as(site.gateway, "deputy_cache_by_user")
    judged = await judge(site, await call_all(site, few))
    controls["tokens are remembered by their user"] = judged.wrong["another's credential"] > 0
    await restart_as(site.gateway, "deputy_anybody_decides")
    ticket = await open_ticket(site, party.hands[0], "for anybody")
    controls["anybody decides"] = (await decide_wrongly(site, ticket, wrong)).wrongly > 0
    site.world.say(f"broken on purpose: {', '.join(f'{name}: {seen}' for name, seen in controls.items())}")
    return controls


def _verdict(
    world: World,
    pairs: Judged,
    tried: Tried,
    decided: Decided,
    searched: Searched,
    doors: Doors,
    bad: Sequence[Bad],
    shut: Sequence[str],
    controls: dict[str, bool],
) -> Verdict:
    figures: dict[str, Figure] = {
        "bad_tokens": len({each.token for each in bad}),
        "doors": len(doors.all),
        "accepted": tried.accepted,
        "effects": tried.effects,
        "doors_shut_to_good_tokens": len(shut),
        "unguarded_routes": len(doors.unguarded),
        "pairs": pairs.pairs,
        "mismatches": pairs.wrong.total(),
        "secrets_found": len(searched.found),
        "planted_missed": len(searched.missed),
        "tries": tried.tries,
        "decided_wrongly": decided.wrongly,
        "refused_for_another_reason": decided.odd,
        "tries_to_decide": decided.tries,
        "no_answer": tried.broken,
        "calls_for_others": pairs.calls,
        "looks_at_others_calls": pairs.looks,
        "credential_lives_seconds": pairs.longest_seconds,
        "span_bytes_searched": searched.span_bytes,
        "spellings_searched": searched.needles,
        "tables_searched": searched.tables,
    }
    return Verdict(
        starved=("no_answer", "doors_shut_to_good_tokens"),
        figures=figures,
        bars={
            **dict.fromkeys(_NEVER, _NONE),
            "bad_tokens": (">=", 300),
            "doors": (">=", 15),
            "pairs": (">=", world.size(quick=200, full=10_000)),
            "span_bytes_searched": (">=", 10_000),
        },
        controls=controls,
        notes=[
            *tried.samples, *decided.samples, *pairs.samples, *(f"shut: {each}" for each in shut), *doors.unguarded,
            *(f"found: {each}" for each in searched.found[:20]), *(f"missed: {each}" for each in searched.missed),
        ],
    )  # fmt: skip
