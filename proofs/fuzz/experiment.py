"""Fuzzers at the interfaces of one gateway, and a neighbour in another tenant whose every call must succeed meanwhile.

schemathesis takes the API document at its word, route by route. Our own fuzzers speak JSON-RPC and REST
(`rpc_fuzzer.py`) and MCP (`mcp_fuzzer.py`) to real tools, with bodies that no proper client would send. Beside
them, `run_fuzzer.py` asks the document's routes about runs, approval requests, approvals and callbacks for some
that are really there, while a worker carries what is queued; `console_fuzzer.py` does the same with the pages where
people decide.
"""

import asyncio
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import orjson

from deputize.interfaces.rest.approvals.approval_models import ApprovalModel
from deputize.interfaces.rest.approvals.human_task_models import HumanTaskModel
from proofs.fuzz.console_fuzzer import fuzz_pages
from proofs.fuzz.mcp_fuzzer import fuzz_mcp
from proofs.fuzz.rpc_fuzzer import fuzz_rpc
from proofs.fuzz.run_fuzzer import SeedData, create_seed_data, fuzz_runs
from proofs.fuzz.runner import FuzzResult
from proofs.kit.gateway import (
    ALLOW_ALL_POLICY,
    RAISED_REQUEST_LIMITS,
    GatewayHandle,
    Issuer,
    create_issuer,
    put_policies,
    start_gateway,
    start_worker,
)
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.http_client import HttpConnection, HttpResponse
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox
from proofs.kit.sign_in_issuer import Browser, SignInIssuer

NAME = "fuzz"
PROMISE = "Whatever is sent, the answer is one the document promises, and nobody else notices."

_BESIDE = "beside"
_POISON = "poison"
_PAUSE = 0.02
# So many tickets are decided by the first requests about runs.
_RESERVED_COUNT = 4
_APPROVER_GROUP, _GLASS = "oncall", "deputize:break-glass"
# More have to agree than one, so that a ticket hears several of them before it is decided.
_POLICIES = f"""{ALLOW_ALL_POLICY}
@id("pleading-asks")
@decision("ask")
@approvers("{_APPROVER_GROUP}")
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
_EXCLUDED_CHECKS = "use_after_free,ensure_resource_availability,positive_data_acceptance"
# JSON-RPC answers a wrong request with 200 and an error inside; our own fuzzer judges those.
_CONFIG = """
[[operations]]
include-path = "/rpc"
[operations.checks.negative_data_rejection]
enabled = false
"""


@dataclass(kw_only=True, slots=True)
class Neighbour:
    """Someone else's calls during the fuzz."""

    calls: int = 0
    failure_count: int = 0
    slowest_ms: float = 0.0
    samples: list[str] = field(default_factory=list)

    def record_answer(self, text: str, answer: HttpResponse | Exception, ms: float) -> None:
        """Record an answer, or why there is none; a good one gives the text of its request back."""
        self.calls += 1
        self.slowest_ms = max(self.slowest_ms, ms)
        if isinstance(answer, Exception):
            is_good, response_text = False, repr(answer)
        else:
            is_good = answer.status == 200 and answer.json()["result"]["text"] == text
            response_text = repr(answer.body[:300])
        if not is_good:
            self.failure_count += 1
            self.samples = [*self.samples, f"neighbour: {response_text}"][:5]


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemathesisResult:
    """What schemathesis did and found, failures by their kind."""

    cases: int
    wrong: Counter[str]
    errors: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ApprovalSetup:
    """What there is to ask about, and who signed in to decide about it."""

    seed_data: SeedData
    issuer: SignInIssuer
    browser: Browser

    @property
    def bindings(self) -> dict[str, str]:
        """Approval requests that no other fuzzer begins with, by their bindings."""
        ids = self.seed_data.ids_by_name
        return dict(list(zip(ids["/v1/approvals"], ids["binding"], strict=True))[_RESERVED_COUNT:])


Result = TypeVar("Result", FuzzResult, SchemathesisResult)


async def prove(sandbox: Sandbox) -> Verdict:
    postgres = await sandbox.start_postgres()
    issuer, port = create_issuer(), sandbox.pick_free_port()
    sign_in_issuer = await SignInIssuer.start(sandbox, issuer, _POISON)
    settings = _SETTINGS + sign_in_issuer.render_settings(f"http://127.0.0.1:{port}") + RAISED_REQUEST_LIMITS
    gateway = await start_gateway(
        sandbox, postgres.dsn, issuer, tools="fuzz.py", settings=settings, port=port, policies=_POLICIES
    )
    for tenant in (_BESIDE, _POISON):
        await _register_tenant(gateway, issuer, tenant)
    worker = await start_worker(gateway)
    admin = _issue_token(issuer, _POISON, "deputize:admin")
    setup = await _seed_approvals(gateway, sign_in_issuer, admin)
    seed_data = setup.seed_data
    sandbox.log("to ask about: " + ", ".join(f"{len(ids)} {name}" for name, ids in seed_data.ids_by_name.items()))
    async with _run_neighbour(gateway, issuer) as neighbour:
        rpc_result, mcp_result, run_result, page_result, schemathesis_result = await asyncio.gather(
            _log_result(
                sandbox,
                "own fuzzer",
                fuzz_rpc(
                    gateway.url,
                    _issue_token(issuer, _POISON),
                    cases=sandbox.pick_size(quick=350, full=3500),
                    seed=1,
                    calls=seed_data.ids_by_name["call_id"],
                ),
            ),
            _log_result(
                sandbox,
                "at MCP",
                fuzz_mcp(
                    gateway.url,
                    _issue_token(issuer, _POISON),
                    cases=sandbox.pick_size(quick=300, full=2500),
                    seed=1,
                    calls=seed_data.ids_by_name["call_id"],
                ),
            ),
            _log_result(
                sandbox,
                "about runs",
                fuzz_runs(gateway.url, admin, seed_data, cases=sandbox.pick_size(quick=250, full=2000), seed=1),
            ),
            _log_result(
                sandbox,
                "about pages",
                fuzz_pages(
                    gateway.url,
                    sign_in_issuer.url,
                    setup.browser,
                    setup.bindings,
                    cases=sandbox.pick_size(quick=120, full=1500),
                    seed=1,
                ),
            ),
            _log_result(
                sandbox,
                "schemathesis",
                _run_schemathesis(sandbox, gateway, "whole", examples=sandbox.pick_size(quick=6, full=150)),
            ),
        )
    log_fault_count = sum(count_log_faults(each.log.read_text(errors="replace")) for each in (gateway.child, worker))
    controls = await _run_controls(sandbox, gateway, issuer, setup)
    return build_verdict(
        (rpc_result, mcp_result, run_result, page_result, schemathesis_result),
        neighbour,
        log_fault_count,
        controls,
    )


async def _seed_approvals(gateway: GatewayHandle, issuer: SignInIssuer, admin: str) -> ApprovalSetup:
    approvals = gateway.sandbox.pick_size(quick=30, full=200)
    voices = [issuer.issue_token(f"{_APPROVER_GROUP}-{number}", [_APPROVER_GROUP], scope=_GLASS) for number in range(4)]
    # Tokens that are good, and of people who may look and not decide, or not even that.
    others = [issuer.issue_token("old", [_APPROVER_GROUP], auth_time=1), issuer.issue_token("guest", ["sales"])]
    seed_data = await create_seed_data(gateway.url, admin, [*voices, *others], approvals=approvals)
    return ApprovalSetup(seed_data=seed_data, issuer=issuer, browser=await issuer.sign_in(gateway.url, _APPROVER_GROUP))


def count_log_faults(log: str) -> int:
    """Count the faults that a gateway or worker hid from its callers and logged."""
    return len(_FAULT.findall(log))


def build_verdict(
    results: tuple[FuzzResult, FuzzResult, FuzzResult, FuzzResult, SchemathesisResult],
    neighbour: Neighbour,
    log_fault_count: int,
    controls: dict[str, bool],
) -> Verdict:
    rpc_result, mcp_result, run_result, page_result, schemathesis_result = results
    wrong = rpc_result.wrong + mcp_result.wrong + run_result.wrong + page_result.wrong + schemathesis_result.wrong
    never_done = [*run_result.never_done, *page_result.never_done]
    return Verdict(
        figures={
            "cases": rpc_result.cases
            + mcp_result.cases
            + run_result.cases
            + page_result.cases
            + schemathesis_result.cases,
            "server_errors": wrong["server error"],
            "internal": wrong["internal"] + log_fault_count,
            "violations": wrong.total() - wrong["server error"] - wrong["internal"] + schemathesis_result.errors,
            "routes_never_done": len(never_done),
            "neighbour_hurt": neighbour.failure_count,
            "neighbour_calls": neighbour.calls,
            "neighbour_slowest_ms": round(neighbour.slowest_ms, 1),
            "json_rpc_and_poison_cases": rpc_result.cases,
            "mcp_cases": mcp_result.cases,
            "cases_about_runs": run_result.cases,
            "cases_about_pages": page_result.cases,
            "schemathesis_cases": schemathesis_result.cases,
        },
        controls=controls,
        notes=[
            *rpc_result.samples,
            *mcp_result.samples,
            *run_result.samples,
            *page_result.samples,
            *neighbour.samples,
            *(f"never done: {each}" for each in never_done),
        ],
    )


async def _log_result(sandbox: Sandbox, name: str, task: Awaitable[Result]) -> Result:
    result = await task
    sandbox.log(f"{name}: {result.cases} cases, {dict(result.wrong) or 'nothing wrong'}")
    return result


def _issue_token(issuer: Issuer, tenant: str = "acme", *scopes: str) -> str:
    return issuer.issue_token("somebody", tenant=tenant, scopes=("proof:write", *scopes))


async def _register_tenant(gateway: GatewayHandle, issuer: Issuer, tenant: str) -> None:
    """A tenant with tools of its own, so that schemathesis, an administrator next interface, cannot retire them."""
    await put_policies(gateway.url, _issue_token(issuer, tenant, "deputize:admin"), _POLICIES)
    source = HttpConnection.for_url(gateway.url, token=_issue_token(issuer, "acme"))
    admin = HttpConnection.for_url(gateway.url, token=_issue_token(issuer, tenant, "deputize:admin"))
    for name in ("echo", "note", "plead", "steps", "linger", "slip", "lose"):
        tool = (await source.get(f"/v1/tools/fuzz.{name}")).json()
        contract = {**tool["contract"], "handler": {"target": f"tools.fuzz:{name}"}}
        answer = await admin.post("/v1/tools", contract)
        if answer.status != 201:
            raise RuntimeError(f"a tool of {tenant} was not registered: {answer.body!r}")
    source.close()
    admin.close()


@asynccontextmanager
async def _run_neighbour(gateway: GatewayHandle, issuer: Issuer) -> AsyncIterator[Neighbour]:
    neighbour, enough = Neighbour(), asyncio.Event()
    call_task = asyncio.create_task(_call_repeatedly(gateway, _issue_token(issuer, _BESIDE), neighbour, enough))
    try:
        yield neighbour
    finally:
        enough.set()
        await call_task


async def _call_repeatedly(gateway: GatewayHandle, token: str, neighbour: Neighbour, enough: asyncio.Event) -> None:
    http = HttpConnection.for_url(gateway.url, token=token)
    while not enough.is_set():
        text = f"call {neighbour.calls}"
        name = ("echo", "note")[neighbour.calls % 2]
        began = time.monotonic()
        answer: HttpResponse | Exception
        try:
            answer = await http.post("/v1/calls", {"tool": f"fuzz.{name}", "arguments": {"text": text}})
        except (OSError, EOFError) as error:
            answer = error
        neighbour.record_answer(text, answer, (time.monotonic() - began) * 1000)
        await asyncio.sleep(_PAUSE)
    http.close()


async def _run_schemathesis(
    sandbox: Sandbox, gateway: GatewayHandle, name: str, *, examples: int, only: str = ""
) -> SchemathesisResult:
    folder = sandbox.folder / f"schemathesis-{name}"
    folder.mkdir()
    (folder / "schemathesis.toml").write_text(_CONFIG)
    token = _issue_token(gateway.issuer, "acme", "deputize:admin")
    phases = "examples,coverage,fuzzing" if sandbox.full else "examples,fuzzing"
    argv = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{gateway.url}/openapi.json"]
    argv += ["--header", f"Authorization: Bearer {token}", "--phases", phases]
    argv += ["--max-examples", str(examples), "--seed", "1", "--exclude-checks", _EXCLUDED_CHECKS]
    argv += ["--generation-allow-x00", "false", "--generation-database", "none", "--no-shrink", "--no-color"]
    argv += ["--continue-on-failure", "--suppress-health-check", "all", "--request-timeout", "10"]
    argv += ["--report", "json", "--report-json-path", "report.json"]
    # The stream of audit entries does not end; its parameters are those of the search.
    argv += ["--include-path", only] if only else ["--exclude-path", "/v1/audit/tail"]
    process = await sandbox.run_command(argv, cwd=folder, timeout=1200)
    report = folder / "report.json"
    if not report.exists():
        raise RuntimeError(f"schemathesis left no report: {(process.stdout + process.stderr)[-2000:]}")
    report_json = orjson.loads(report.read_bytes())
    if report_json["failures"] or report_json["test_cases"]["errored"] or process.code not in (0, 1):
        sandbox.log(
            process.stdout[-6000:]
            if not only
            else f"schemathesis on {only}: {len(report_json['failures'])} kinds of failure"
        )
    return read_report(report_json)


def read_report(report_json: Mapping[str, Any]) -> SchemathesisResult:
    """Read the failures by their kind; a case that could not be sent or judged is an error."""
    failures: Counter[str] = Counter()
    for each in report_json["failures"]:
        failures["server error" if each["type"] == "ServerError" else each["type"]] += each["count"]
    cases = report_json["test_cases"]
    return SchemathesisResult(cases=cases["generated"] - cases["errored"], wrong=failures, errors=cases["errored"])


async def _run_controls(
    sandbox: Sandbox, gateway: GatewayHandle, issuer: Issuer, setup: ApprovalSetup
) -> dict[str, bool]:
    """The same fuzzers at a gateway with a fault: each must find it."""
    await restart_as_variant(gateway, "fuzz_planted_faults")
    rpc_result, run_result, page_result, search_result = await asyncio.gather(
        fuzz_rpc(gateway.url, _issue_token(issuer, _POISON), cases=150, seed=2),
        fuzz_runs(gateway.url, _issue_token(issuer, _POISON, "deputize:admin"), setup.seed_data, cases=50, seed=2),
        fuzz_pages(gateway.url, setup.issuer.url, setup.browser, setup.bindings, cases=10, seed=2),
        _run_schemathesis(sandbox, gateway, "search", examples=10, only="/v1/tools/search"),
    )
    sandbox.log(f"faults planted; own fuzzer found {dict(rpc_result.wrong)}, about runs {dict(run_result.wrong)}")
    wrong_count = rpc_result.wrong.total() - rpc_result.wrong["internal"] - rpc_result.wrong["server error"]
    return {
        "a planted fault, by our own fuzzer": rpc_result.wrong["internal"] > 0,
        "a planted wrong answer, by our own fuzzer": wrong_count > 0,
        "a planted wrong answer about a task": run_result.wrong[f"not a {HumanTaskModel.__name__}"] > 0,
        "a planted wrong answer about an approval": run_result.wrong[f"not a {ApprovalModel.__name__}"] > 0,
        "a planted fault, on a page": page_result.wrong["server error"] > 0,
        "a planted fault, by schemathesis": search_result.wrong["server error"] > 0,
    }
