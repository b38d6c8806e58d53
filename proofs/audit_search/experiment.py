"""Kinds of question are asked of a month of audit entries over `GET /v1/audit`, by five kinds of people of two tenants.

What has to come back is computed by brute force from what was drawn for each entry. Each walk begins at the newest
entry and once more in the middle, and is compared: nothing is missing, doubled, out of order or another's. So is what
each of them exports. Without the index the rare questions must be slow; with a search that leaves the tenant out, one
that loses an entry in 256, and a gateway that takes everybody for an auditor, the comparison must say so.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

import asyncpg
import httpx2
import orjson

from deputize.core.clock import Clock
from proofs.audit_search.judge import Findings, Names, Walk, add_findings, compute_percentile, judge_walk
from proofs.audit_search.questions import READERS, Question, Reader, answer, list_questions
from proofs.audit_search.sample_log import ERASED, SCOPED_TOOL, TENANTS, Drawn, draw_entries, fill_log, wait_for_log
from proofs.kit.gateway import GatewayHandle, create_issuer, start_gateway
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.http_client import HttpConnection
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox

NAME = "audit_search"
PROMISE = "Every question of the audit is answered quickly, completely, and with nothing that is another's."

_PAGE: Final = 50
_PAGES_OF_WALK: Final = 3
# Of the function that searches: what keeps tenants apart, and one more condition that loses entries.
_TENANT: Final = "a.tenant = $1 and "
_NO_TENANT: Final = "$1::text is not null and "
_LOSSY: Final = "a.tenant = $1 and get_byte(uuid_send(a.id), 15) <> 7 and "
_PEAK: Final = re.compile(r"VmHWM:\s+(\d+) kB")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One question that one reader asked: the time of each page, and how the pages differ from the answer."""

    kind: str
    milliseconds: Sequence[float]
    findings: Sequence[Findings]
    failed_pages: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleLog:
    """What was drawn, and where the log ended when the first question was asked."""

    drawn: Mapping[UUID, Drawn]
    by_tenant: Mapping[str, Sequence[Drawn]]
    questions: Mapping[str, Sequence[Question]]
    end: UUID


async def prove(sandbox: Sandbox) -> Verdict:
    clock, count = Clock(), sandbox.pick_size(quick=20_000, full=1_000_000)
    postgres = await sandbox.start_postgres(settings={"fsync": "off", "max_wal_size": "4GB"})
    gateway = await start_gateway(sandbox, postgres.dsn, create_issuer(), tools="orders.py")
    owner = await asyncpg.connect(postgres.dsn)
    try:
        entries = draw_entries(count, clock.epoch_ms())
        version = await share_tool(gateway, SCOPED_TOOL, TENANTS)
        pseudonyms = await fill_log(owner, entries, version, clock, sandbox.log)
        await wait_for_log(owner, clock)
        sandbox.log("in the logs of the tenants")
        by_tenant = {tenant: [each for each in entries if each.tenant == tenant] for tenant in TENANTS}
        sample = SampleLog(
            drawn={each.id: each for each in entries},
            by_tenant=by_tenant,
            questions={tenant: list_questions(by_tenant[tenant], pseudonyms[tenant][ERASED]) for tenant in TENANTS},
            end=UUID(int=entries[-1].id.int + 1),
        )
        asked = [
            each for tenant in TENANTS for reader in READERS for each in await _ask_all(gateway, sample, tenant, reader)
        ]
        _print_times(asked, sandbox.log)
        exported, grown_mb = await _export_all(gateway, sample)
        sandbox.log(f"exported; memory grew by {grown_mb:.1f} MB")
        controls = await _try_controls(gateway, owner, sample)
    finally:
        await owner.close()
    times = [each for one in asked for each in one.milliseconds]
    kinds = {each.kind for each in asked}
    return Verdict(
        figures={
            "entries": count,
            "kinds_of_question": len(kinds),
            "kinds_of_reader": len(READERS),
            "pages": len(times),
            "page_p50_ms": round(compute_percentile(times, 50), 1),
            "page_p95_ms": round(compute_percentile(times, 95), 1),
            "slowest_kind_p95_ms": round(max(compute_percentile(_list_times(asked, kind), 95) for kind in kinds), 1),
            "failed_pages": sum(each.failed_pages for each in asked),
            **add_findings([*(found for each in asked for found in each.findings), *exported]),
            "export_memory_mb": round(grown_mb, 1),
        },
        controls=controls,
    )


async def share_tool(gateway: GatewayHandle, tool: str, tenants: Sequence[str]) -> str:
    """Register the first tenant's tool for the other, whose readers then need its scope too; return its version."""
    first, second = (_connect(gateway, tenant, READERS[0]) for tenant in tenants)
    contract = (await first.get(f"/v1/tools/{tool}")).json()["contract"]
    response = await second.post("/v1/tools", {**contract, "handler": {"target": "tools.orders:place"}})
    first.close()
    second.close()
    if response.status >= 300:
        raise RuntimeError(f"{tool} was not registered: {response.status} {response.body!r}")
    return str(contract["version"])


def _connect(gateway: GatewayHandle, tenant: str, reader: Reader) -> HttpConnection:
    token = gateway.issuer.issue_token(reader.user, tenant=tenant, agent=reader.agent, scopes=reader.scopes)
    return HttpConnection.for_url(gateway.url, token=token)


async def _ask_all(gateway: GatewayHandle, sample: SampleLog, tenant: str, reader: Reader) -> list[Asked]:
    http = _connect(gateway, tenant, reader)
    try:
        return [await _ask(http, sample, tenant, reader, each) for each in sample.questions[tenant]]
    finally:
        http.close()


async def _ask(http: HttpConnection, sample: SampleLog, tenant: str, reader: Reader, question: Question) -> Asked:
    """Ask for the newest pages, and for those from the middle of the answer if there are many."""
    expected = answer(question, reader, sample.by_tenant[tenant])
    starts = [sample.end]
    if len(expected) > 2 * _PAGES_OF_WALK * _PAGE:
        starts.append(expected[len(expected) // 2])
    milliseconds: list[float] = []
    findings, failed = [], 0
    for start in starts:
        found: list[tuple[UUID, Names]] = []
        cursor: UUID | None = start
        for _ in range(_PAGES_OF_WALK):
            fields = {**question.parameters, "limit": str(_PAGE), "before": str(cursor)}
            began = time.perf_counter()
            response = await http.get(f"/v1/audit?{urlencode(fields)}")
            milliseconds.append((time.perf_counter() - began) * 1000)
            if response.status != 200:
                failed += 1
                break
            page = response.json()
            found += map(_read_entry, page["entries"])
            cursor = None if page["next_before"] is None else UUID(page["next_before"])
            if cursor is None:
                break
        walk = Walk(start=start, found=found, cursor=cursor)
        findings.append(_judge(sample, tenant, reader, expected, walk))
    return Asked(kind=question.kind, milliseconds=milliseconds, findings=findings, failed_pages=failed)


def _judge(sample: SampleLog, tenant: str, reader: Reader, expected: Sequence[UUID], walk: Walk) -> Findings:
    return judge_walk(walk, expected, sample.drawn, lambda each: each.tenant == tenant and reader.may_see(each))


def _read_entry(shown: dict[str, Any]) -> tuple[UUID, Names]:
    return UUID(shown["entry"]["id"]), (shown["user"], tuple(shown["agents"]))


def _list_times(asked: Sequence[Asked], kind: str) -> list[float]:
    return [milliseconds for each in asked if each.kind == kind for milliseconds in each.milliseconds]


def _print_times(asked: Sequence[Asked], log: Callable[[str], None]) -> None:
    for kind in dict.fromkeys(each.kind for each in asked):
        times = _list_times(asked, kind)
        p50, p95 = compute_percentile(times, 50), compute_percentile(times, 95)
        log(f"{kind}: p50 {p50:.1f} ms, p95 {p95:.1f} ms, {len(times)} pages")


async def _export_all(gateway: GatewayHandle, sample: SampleLog) -> tuple[list[Findings], float]:
    """Let everybody export all that they may see; return the findings, and by how much the gateway's memory grew."""
    before_kb = _read_peak_kb(gateway)
    findings = []
    for tenant in TENANTS:
        for reader in READERS:
            expected = answer(sample.questions[tenant][0], reader, sample.by_tenant[tenant])
            found = await _export(gateway, sample, tenant, reader)
            walk = Walk(start=sample.end, found=found, cursor=None)
            findings.append(_judge(sample, tenant, reader, expected, walk))
    return findings, (_read_peak_kb(gateway) - before_kb) / 1024


async def _export(gateway: GatewayHandle, sample: SampleLog, tenant: str, reader: Reader) -> list[tuple[UUID, Names]]:
    """Export everything; what this proof itself left in the audit is newer than the sample, and left out."""
    headers = dict(_connect(gateway, tenant, reader).headers)
    found = []
    async with (
        httpx2.AsyncClient(base_url=gateway.url, headers=headers, trust_env=False, timeout=120.0) as client,
        client.stream("GET", "/v1/audit/export") as response,
    ):
        response.raise_for_status()
        async for line in response.aiter_lines():
            entry = _read_entry(orjson.loads(line))
            if entry[0] < sample.end:
                found.append(entry)
    return found


def _read_peak_kb(gateway: GatewayHandle) -> int:
    match = _PEAK.search(Path(f"/proc/{gateway.child.pid}/status").read_text())
    return int(match[1]) if match else 0


async def _try_controls(gateway: GatewayHandle, owner: asyncpg.Connection, sample: SampleLog) -> dict[str, bool]:
    """Take one part of the search away after the other, and tell whether each is noticed."""
    tenant, auditor = TENANTS[0], READERS[1]
    definition = await owner.fetchval("select pg_get_functiondef(oid) from pg_proc where proname = 'search_audit'")

    async def find_with(condition: str) -> dict[str, Any]:
        changed = definition.replace(_TENANT, condition)
        if changed == definition:
            raise RuntimeError("search_audit is written otherwise than this proof expects")
        await owner.execute(changed)
        asked = await _ask_all(gateway, sample, tenant, auditor)
        await owner.execute(definition)
        return add_findings(found for each in asked for found in each.findings)

    controls = {
        "without the tenant": (await find_with(_NO_TENANT))["foreign_entries"] > 0,
        "with a lost entry": (await find_with(_LOSSY))["missing_entries"] > 0,
    }
    await restart_as_variant(gateway, "audit_search_all_callers")
    everybody = [each for reader in READERS[2:] for each in await _ask_all(gateway, sample, tenant, reader)]
    leaked = add_findings(found for each in everybody for found in each.findings)
    controls["audit_search_all_callers"] = int(leaked["foreign_entries"]) > 0
    await gateway.restart()
    rare = [each for each in sample.questions[tenant] if each.kind in ("absent trace", "rare rule", "circuits")]
    with_index = await _time_questions(gateway, sample, tenant, auditor, rare)
    await owner.execute("drop index deputize.audit_entries_by_terms")
    without_index = await _time_questions(gateway, sample, tenant, auditor, rare)
    controls["without the index"] = without_index > 3 * with_index
    return controls


async def _time_questions(
    gateway: GatewayHandle, sample: SampleLog, tenant: str, reader: Reader, questions: Sequence[Question]
) -> float:
    http = _connect(gateway, tenant, reader)
    asked = [await _ask(http, sample, tenant, reader, each) for each in questions]
    http.close()
    return sum(each.milliseconds[0] for each in asked)
