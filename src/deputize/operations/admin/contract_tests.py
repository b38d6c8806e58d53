"""Record results of contract tests in the registry, signed, and require fresh ones before a version is registered.

A report is believed as far as this gateway has seen its calls: each call that it cites has an audit entry here, made by
the caller who reports, and a passed test completed calls of exactly the contract that it names.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal
from uuid import UUID

import asyncpg
import orjson

from deputize.acts.act import commit_act
from deputize.catalog.registration_rules import check_test_result
from deputize.catalog.snapshot import TenantTools
from deputize.core.caller import Caller
from deputize.core.contract.contract import Contract
from deputize.core.errors import MalformedRequest, NoSuchRoute
from deputize.core.states import State
from deputize.govern.identity.attestations import (
    AttestationRefused,
    ContractTestAttestation,
    sign_attestation,
    verify_attestation,
)
from deputize.govern.token_authorization import is_tool_visible, require_full_admin
from deputize.lifecycle.recording.stored_call import is_recorded_maker
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("contract_tests")
MAX_CASES: Final = 2_000
MAX_CALLS: Final = 4_000
_KEPT_RESULTS: Final = 100
_LISTED_RESULTS: Final = 20
# How far the clock of another gateway may be ahead.
_CLOCK_SKEW_SECONDS: Final = 300
ReportedVerdict = Literal["passed", "failed", "unchecked"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedCase:
    """What a tester says of one case."""

    verdict: ReportedVerdict
    call_ids: tuple[UUID, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ContractTestClaim:
    """What a tester says of one version of a tool."""

    digest: str
    seed: int
    cases: tuple[ReportedCase, ...]

    @property
    def failures(self) -> int:
        return sum(each.verdict == "failed" for each in self.cases)

    @property
    def verdict(self) -> ReportedVerdict:
        """Passed only if every case passed."""
        if self.failures:
            return "failed"
        return "passed" if all(each.verdict == "passed" for each in self.cases) else "unchecked"

    @property
    def call_ids(self) -> set[UUID]:
        return {call_id for case in self.cases for call_id in case.call_ids}


class ContractTests:
    """Results of contract tests in the registry."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def record_report(self, caller: Caller, name: str, version: str, report: ContractTestClaim) -> dict[str, Any]:
        """Check a report against the calls that this gateway recorded, sign it and store it."""
        require_full_admin(caller)
        runtime = self._runtime
        if runtime.signing_keys is None:
            raise NoSuchRoute("results of tests cannot be signed: identity.public_url is not set")
        tools = (await runtime.authority.load_tenant(caller.tenant)).tools
        tested_version = tools.resolve_version(name, version, visible=lambda each: is_tool_visible(caller, each))
        if tested_version.digest != report.digest:
            raise _make_refusal(f"{name} {version} has another digest than the tested contract; test it again")
        await self._check_calls(caller, report)
        attestation = ContractTestAttestation(
            jti=UUID(runtime.clock.new_id()),
            iat=runtime.clock.epoch_ms() // 1000,
            tool=tested_version.contract.full_name,
            version=tested_version.version,
            digest=report.digest,
            verdict=report.verdict,
            cases=len(report.cases),
            failures=report.failures,
            seed=report.seed,
        )
        key = await runtime.signing_keys.load_current_key(caller.tenant)
        return await self._store(caller, attestation, sign_attestation(key, attestation))

    async def record_attestation(self, caller: Caller, name: str, version: str, text: str) -> dict[str, Any]:
        """Store a result that another gateway signed, also of a version that is not registered here yet."""
        require_full_admin(caller)
        runtime = self._runtime
        jwks_files = {each.issuer: each.jwks_file for each in runtime.settings.tools.tests.testers}
        try:
            attestation = await verify_attestation(text, caller.tenant, runtime.signing_keys, jwks_files)
        except AttestationRefused as error:
            raise _make_refusal(f"the attestation is not accepted: {error}") from None
        if (attestation.tool, attestation.version) != (name, version):
            raise _make_refusal(f"the attestation is of {attestation.tool} {attestation.version}, not {name} {version}")
        if attestation.iat > runtime.clock.epoch_ms() // 1000 + _CLOCK_SKEW_SECONDS:
            raise _make_refusal("the attestation is of the future; check the clocks of both gateways")
        return await self._store(caller, attestation, text)

    async def list_results(self, caller: Caller, name: str, version: str) -> list[dict[str, Any]]:
        """List the newest results of a version that the caller can see."""
        tenant = caller.tenant
        tools = (await self._runtime.authority.load_tenant(tenant)).tools
        shown_version = tools.resolve_version(name, version, visible=lambda each: is_tool_visible(caller, each))
        full_name = shown_version.contract.full_name
        async with self._runtime.store.read_transaction(tenant) as connection:
            rows = await connection.fetch(
                _SQL["list_contract_tests"], tenant, full_name, shown_version.version, _LISTED_RESULTS
            )
        return [
            {
                "id": str(row["id"]),
                "digest": row["digest"],
                "verdict": row["verdict"],
                "cases": row["cases"],
                "failures": row["failures"],
                "tested_at": row["tested_at"].isoformat(timespec="seconds"),
                "attestation": row["attestation"],
            }
            for row in rows
        ]

    async def require_fresh_result(self, tenant: str, contract: Contract, tools: TenantTools) -> None:
        """Refuse a new version of an operator's own tool without a fresh passed test, if the settings require one.

        A version that is registered with the same content stays: its result may grow old.
        """
        settings = self._runtime.settings.tools.tests
        if not settings.must_pass or contract.handler.driver != "python":
            return
        entry = tools.tools.get(contract.full_name)
        registered_version = None if entry is None else entry.by_version.get(contract.version)
        if registered_version is not None and registered_version.digest == contract.digest:
            return
        async with self._runtime.store.read_transaction(tenant) as connection:
            row = await connection.fetchrow(
                _SQL["load_newest_contract_test"], tenant, contract.full_name, contract.digest
            )
        age = 0.0 if row is None else self._runtime.clock.epoch_ms() / 1000 - row["tested_at"].timestamp()
        check_test_result(contract, None if row is None else row["verdict"], age, settings.max_age_seconds)

    async def _check_calls(self, caller: Caller, report: ContractTestClaim) -> None:
        call_ids = report.call_ids
        if len(call_ids) > MAX_CALLS:
            raise _make_refusal(f"the report cites more than {MAX_CALLS} calls; test with fewer samples")
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(_SQL["list_entries_of_calls"], caller.tenant, list(call_ids))
        completed_calls, known_calls = await asyncio.to_thread(_read_entries, rows, caller, report.digest)
        if missing := call_ids - known_calls:
            raise _make_refusal(
                f"{len(missing)} of the calls are not recorded here as yours, such as {min(missing)}; "
                "record the result at the gateway that was tested, with the same token"
            )
        if report.verdict == "passed" and not completed_calls:
            raise _make_refusal("none of the calls completed with this contract, so nothing was tested")

    async def _store(self, caller: Caller, attestation: ContractTestAttestation, text: str) -> dict[str, Any]:
        tenant, tool = caller.tenant, attestation.tool
        tested_at = datetime.fromtimestamp(attestation.iat, UTC)

        async def act(connection: Connection) -> None:
            before = await connection.fetchrow(_SQL["load_newest_contract_test"], tenant, tool, attestation.digest)
            turns_red = attestation.verdict == "failed" and (before is None or before["verdict"] != "failed")
            await connection.execute(
                _SQL["insert_contract_test"], tenant, attestation.jti, tool, attestation.version, attestation.digest,
                attestation.verdict, attestation.cases, attestation.failures, text, tested_at, turns_red,
            )  # fmt: skip
            await connection.execute(_SQL["delete_old_contract_tests"], tenant, tool, _KEPT_RESULTS)

        subject = f"{tool}@{attestation.version} {attestation.digest}"
        await commit_act(self._runtime, caller, f"record_test:{attestation.verdict}", subject, act, ())
        return {
            "id": str(attestation.jti),
            "name": tool,
            "version": attestation.version,
            "digest": attestation.digest,
            "verdict": attestation.verdict,
            "cases": attestation.cases,
            "failures": attestation.failures,
            "tested_at": tested_at.isoformat(timespec="seconds"),
            "attestation": text,
        }


def _read_entries(rows: Sequence[asyncpg.Record], caller: Caller, digest: str) -> tuple[set[UUID], set[UUID]]:
    """Return the calls that completed with a contract, and all calls of this caller."""
    completed_calls: set[UUID] = set()
    known_calls: set[UUID] = set()
    for row in rows:
        entry = orjson.loads(row["entry"])
        if not is_recorded_maker(caller, entry["caller"]):
            continue
        known_calls.add(row["call_id"])
        if entry.get("outcome") == State.SUCCEEDED and entry.get("digest") == digest:
            completed_calls.add(row["call_id"])
    return completed_calls, known_calls


def _make_refusal(message: str) -> MalformedRequest:
    return MalformedRequest(message, details={"field": "tests"}, nothing_happened=True)
