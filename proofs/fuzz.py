"""Fuzzers at the doors of one gateway, and a neighbour in another tenant whose every call must succeed meanwhile.

schemathesis takes the API document at its word, route by route. Our own fuzzers speak JSON-RPC and REST
(`kit/poison.py`) and MCP (`kit/poison_mcp.py`) to real tools, with bodies that no proper client would send. Beside
them, `kit/poison_runs.py` asks the document's routes about runs, tickets, approvals and callbacks for some that are
really there, while a worker carries what is queued; `kit/poison_pages.py` does the same with the pages where people
decide.
"""

import asyncio
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import orjson

from proofs.kit.fuzzing import Fuzzed
from proofs.kit.gateway import OPEN, GatewayHandle, Issuer, new_issuer, put_policies, start_gateway, start_worker
from proofs.kit.people import Browser, People
from proofs.kit.poison import fuzz
from proofs.kit.poison_mcp import fuzz_mcp
from proofs.kit.poison_pages import fuzz_pages
from proofs.kit.poison_runs import Things, furnish, fuzz_runs
from proofs.kit.report import Verdict
from proofs.kit.variant import restart_as
from proofs.kit.wire import Line
from proofs.kit.world import World

NAME = "fuzz"
PROMISE = "Whatever is sent, the answer is one the document promises, and nobody else notices."

_BESIDE = "beside"
_POISON = "poison"
_PAUSE = 0.02
# So many tickets are decided by the first requests about runs.
_TAKEN = 4
_ASKED, _GLASS = "oncall", "deputize:break-glass"
# More have to agree than one, so that a ticket hears several of them before it is decided.
_POLICIES = f"""{OPEN}
@id("pleading-asks")
@decision("ask")
@approvers("{_ASKED}")
@quorum("3")
forbid (principal, action == Action::"call", resource == Tool::"fuzz.plead");
"""
# What gateway and worker log when a fault of their own was hidden from the caller, or something could not be recorded.
_FAULT = re.compile(r"\[error\s*\] (?!database_lost|connection_refused)\w+")
# Nobody is waited for: what is lost is asked of a person at once, and who is not reached is given up on.
_SETTINGS = """
[runs]
reconcile_after_seconds = 0
reconcile_seconds = 0.2
reconcile_tries = 1

[webhooks]
hosts = ["127.0.0.1"]
attempts = 1
"""
# Not asked: what needs state across requests, and whether everything the document allows is accepted. A document cannot
# say what admission, or an integer beyond 2^53, is refused for.
_UNASKED = "use_after_free,ensure_resource_availability,positive_data_acceptance"
# JSON-RPC answers a wrong request with 200 and an error inside; our own fuzzer judges those.
_CONFIG = """
[[operations]]
include-path = "/rpc"
[operations.checks.negative_data_rejection]
enabled = false
"""


@dataclass(kw_only=True, slots=True)
class Neighbour:
    """Somebody else's calls during the fuzz."""

    calls: int = 0
    hurt: int = 0
    slowest_ms: float = 0.0
    samples: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Explored:
    """What schemathesis did and found, failures by their kind."""

    cases: int
    wrong: Counter[str]
    errors: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What there is to ask about, and who signed in to decide about it."""

    things: Things
    people: People
    browser: Browser

    @property
    def seen(self) -> dict[str, str]:
        """Tickets that no other fuzzer begins with, by their bindings."""
        known = self.things.known
        return dict(list(zip(known["/v1/approvals"], known["binding"], strict=True))[_TAKEN:])


Found = TypeVar("Found", Fuzzed, Explored)


async def prove(world: World) -> Verdict:
    postgres = await world.postgres()
    issuer, port = new_issuer(), world.free_port()
    people = await People.open(world, issuer, _POISON)
    settings = _SETTINGS + people.settings(f"http://127.0.0.1:{port}")
    gateway = await start_gateway(
        world, postgres.dsn, issuer, tools="fuzz.py", settings=settings, port=port, policies=_POLICIES
    )
    for tenant in (_BESIDE, _POISON):
        await _move_in(gateway, issuer, tenant)
    worker = await start_worker(gateway)
    admin = _token(issuer, _POISON, "deputize:admin")
    asked = await _furnish(gateway, people, admin)
    things = asked.things
    world.say("to ask about: " + ", ".join(f"{len(ids)} {name}" for name, ids in things.known.items()))
    async with _neighbour(gateway, issuer) as neighbour:
        poisoned, by_mcp, about, paged, explored = await asyncio.gather(
            _told(world, "own fuzzer", fuzz(
                gateway.url, _token(issuer, _POISON), cases=world.size(quick=350, full=3500), seed=1,
                calls=things.known["call_id"],
            )),
            _told(world, "at MCP", fuzz_mcp(
                gateway.url, _token(issuer, _POISON), cases=world.size(quick=300, full=2500), seed=1,
                calls=things.known["call_id"],
            )),
            _told(world, "about runs", fuzz_runs(
                gateway.url, admin, things, cases=world.size(quick=250, full=2000), seed=1
            )),
            _told(world, "about pages", fuzz_pages(
                gateway.url, people.url, asked.browser, asked.seen, cases=world.size(quick=120, full=1500), seed=1
            )),
            _told(world, "schemathesis", _explore(world, gateway, "whole", examples=world.size(quick=6, full=150))),
        )  # fmt: skip
    logged = sum(len(_FAULT.findall(each.log.read_text(errors="replace"))) for each in (gateway.child, worker))
    controls = await _controls(world, gateway, issuer, asked)
    return _verdict(world, (poisoned, by_mcp, about, paged, explored), neighbour, logged, controls)


async def _furnish(gateway: GatewayHandle, people: People, admin: str) -> Asked:
    approvals = gateway.world.size(quick=30, full=200)
    voices = [people.person(f"{_ASKED}-{number}", [_ASKED], scope=_GLASS) for number in range(4)]
    # Tokens that are good, and of people who may look and not decide, or not even that.
    others = [people.person("old", [_ASKED], auth_time=1), people.person("guest", ["sales"])]
    things = await furnish(gateway.url, admin, [*voices, *others], approvals=approvals)
    return Asked(things=things, people=people, browser=await people.sign_in(gateway.url, _ASKED))


def _verdict(
    world: World,
    found: tuple[Fuzzed, Fuzzed, Fuzzed, Fuzzed, Explored],
    neighbour: Neighbour,
    logged: int,
    controls: dict[str, bool],
) -> Verdict:
    poisoned, by_mcp, about, paged, explored = found
    wrong = poisoned.wrong + by_mcp.wrong + about.wrong + paged.wrong + explored.wrong
    undone = [*about.undone, *paged.undone]
    return Verdict(
        starved=("routes_never_done", "neighbour_hurt"),
        figures={
            "cases": poisoned.cases + by_mcp.cases + about.cases + paged.cases + explored.cases,
            "server_errors": wrong["server error"],
            "internal": wrong["internal"] + logged,
            "violations": wrong.total() - wrong["server error"] - wrong["internal"] + explored.errors,
            "routes_never_done": len(undone),
            "neighbour_hurt": neighbour.hurt,
            "neighbour_calls": neighbour.calls,
            "neighbour_slowest_ms": round(neighbour.slowest_ms, 1),
            "json_rpc_and_poison_cases": poisoned.cases,
            "mcp_cases": by_mcp.cases,
            "cases_about_runs": about.cases,
            "cases_about_pages": paged.cases,
            "schemathesis_cases": explored.cases,
        },
        bars={
            "cases": (">=", world.size(quick=800, full=5000)),
            "server_errors": ("==", 0),
            "internal": ("==", 0),
            "violations": ("==", 0),
            "routes_never_done": ("==", 0),
            "neighbour_hurt": ("==", 0),
            "neighbour_calls": (">=", world.size(quick=100, full=1000)),
        },
        controls=controls,
        notes=[
            *poisoned.samples,
            *by_mcp.samples,
            *about.samples,
            *paged.samples,
            *neighbour.samples,
            *(f"never done: {each}" for each in undone),
        ],
    )


async def _told(world: World, name: str, fuzzing: Awaitable[Found]) -> Found:
    found = await fuzzing
    world.say(f"{name}: {found.cases} cases, {dict(found.wrong) or 'nothing wrong'}")
    return found


def _token(issuer: Issuer, tenant: str = "acme", *scopes: str) -> str:
    return issuer.token("somebody", tenant=tenant, scopes=("proof:write", *scopes))


async def _move_in(gateway: GatewayHandle, issuer: Issuer, tenant: str) -> None:
    """A tenant with tools of its own, so that schemathesis, an administrator next door, cannot retire them."""
    await put_policies(gateway.url, _token(issuer, tenant, "deputize:admin"), _POLICIES)
    there = Line.to(gateway.url, token=_token(issuer, "acme"))
    here = Line.to(gateway.url, token=_token(issuer, tenant, "deputize:admin"))
    for name in ("echo", "note", "plead", "steps", "linger", "slip", "lose"):
        shown = (await there.get(f"/v1/tools/fuzz.{name}")).json()
        contract = {**shown["contract"], "handler": {"target": f"tools.fuzz:{name}"}}
        answer = await here.post("/v1/tools", contract)
        if answer.status != 201:
            raise RuntimeError(f"a tool of {tenant} was not registered: {answer.body!r}")
    there.close()
    here.close()


@asynccontextmanager
async def _neighbour(gateway: GatewayHandle, issuer: Issuer) -> AsyncIterator[Neighbour]:
    seen, enough = Neighbour(), asyncio.Event()
    calling = asyncio.create_task(_call_on(gateway, _token(issuer, _BESIDE), seen, enough))
    try:
        yield seen
    finally:
        enough.set()
        await calling


async def _call_on(gateway: GatewayHandle, token: str, seen: Neighbour, enough: asyncio.Event) -> None:
    line = Line.to(gateway.url, token=token)
    while not enough.is_set():
        text = f"call {seen.calls}"
        name = ("echo", "note")[seen.calls % 2]
        began = time.monotonic()
        try:
            answer = await line.post("/v1/calls", {"tool": f"fuzz.{name}", "arguments": {"text": text}})
            good = answer.status == 200 and answer.json()["result"]["text"] == text
            said = repr(answer.body[:300])
        except (OSError, EOFError) as error:
            good, said = False, repr(error)
        seen.calls += 1
        seen.slowest_ms = max(seen.slowest_ms, (time.monotonic() - began) * 1000)
        if not good:
            seen.hurt += 1
            seen.samples = [*seen.samples, f"neighbour: {said}"][:5]
        await asyncio.sleep(_PAUSE)
    line.close()


async def _explore(world: World, gateway: GatewayHandle, name: str, *, examples: int, only: str = "") -> Explored:
    folder = world.folder / f"schemathesis-{name}"
    folder.mkdir()
    (folder / "schemathesis.toml").write_text(_CONFIG)
    token = _token(gateway.issuer, "acme", "deputize:admin")
    phases = "examples,coverage,fuzzing" if world.full else "examples,fuzzing"
    argv = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{gateway.url}/openapi.json"]
    argv += ["--header", f"Authorization: Bearer {token}", "--phases", phases]
    argv += ["--max-examples", str(examples), "--seed", "1", "--exclude-checks", _UNASKED]
    argv += ["--generation-allow-x00", "false", "--generation-database", "none", "--no-shrink", "--no-color"]
    argv += ["--continue-on-failure", "--suppress-health-check", "all", "--request-timeout", "10"]
    argv += ["--report", "json", "--report-json-path", "report.json"]
    argv += ["--include-path", only] if only else []
    ended = await world.run(argv, cwd=folder, timeout=1200)
    report = folder / "report.json"
    if not report.exists():
        raise RuntimeError(f"schemathesis left no report: {(ended.stdout + ended.stderr)[-2000:]}")
    told = orjson.loads(report.read_bytes())
    if told["failures"] or told["test_cases"]["errored"] or ended.code not in (0, 1):
        world.say(
            ended.stdout[-6000:] if not only else f"schemathesis on {only}: {len(told['failures'])} kinds of failure"
        )
    failures: Counter[str] = Counter()
    for each in told["failures"]:
        failures["server error" if each["type"] == "ServerError" else each["type"]] += each["count"]
    cases = told["test_cases"]
    return Explored(cases=cases["generated"] - cases["errored"], wrong=failures, errors=cases["errored"])


async def _controls(world: World, gateway: GatewayHandle, issuer: Issuer, asked: Asked) -> dict[str, bool]:
    """The same fuzzers at a gateway with a fault: each must find it."""
    await restart_as(gateway, "fuzz_planted")
    own, about, paged, searched = await asyncio.gather(
        fuzz(gateway.url, _token(issuer, _POISON), cases=150, seed=2),
        fuzz_runs(gateway.url, _token(issuer, _POISON, "deputize:admin"), asked.things, cases=50, seed=2),
        fuzz_pages(gateway.url, asked.people.url, asked.browser, asked.seen, cases=10, seed=2),
        _explore(world, gateway, "search", examples=10, only="/v1/tools/search"),
    )
    world.say(f"faults planted; own fuzzer found {dict(own.wrong)}, about runs {dict(about.wrong)}")
    shown = own.wrong.total() - own.wrong["internal"] - own.wrong["server error"]
    return {
        "a planted fault, by our own fuzzer": own.wrong["internal"] > 0,
        "a planted wrong answer, by our own fuzzer": shown > 0,
        "a planted wrong answer about a ticket": about.wrong["not a TicketShown"] > 0,
        "a planted wrong answer about an approval": about.wrong["not a ApprovalShown"] > 0,
        "a planted fault, on a page": paged.wrong["server error"] > 0,
        "a planted fault, by schemathesis": searched.wrong["server error"] > 0,
    }
