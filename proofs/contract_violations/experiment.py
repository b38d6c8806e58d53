"""Tools of which half violate their contracts, against the checks of a gateway that does not know which.

A generator writes the tools by a seed, over real state: a file, an SQLite table, a dictionary. Each is tested by its
contract, as `deputize tool test` does, and then called for the first time. Only the judge is told what each really is.
"""

import asyncio
import os
import random
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from deputize.testing.gateway_calls import GatewayCaller
from proofs.contract_violations.checker import Observation, check_tools
from proofs.contract_violations.generator import Label, Project, ToolDraft, draw_tools, draw_violations, write_tools
from proofs.contract_violations.import_check import find_shared_imports
from proofs.contract_violations.judge import ViolationFindings, build_figures, judge_tools, list_notes
from proofs.contract_violations.kinds import ViolationKind
from proofs.kit.gateway import GatewayHandle, Issuer, create_issuer, start_gateway
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox
from proofs.variants import violations_behaviours_untested

NAME = "contract_violations"
PROMISE = (
    "A tool that violates its contract is caught by its test or at its first call, and no honest one is suspected."
)

_QUICK_SEED = 20261116
_SEED_VARIABLE = "PROOF_SEED"
"""Repeats a run with the seed that it printed."""
_SHOWN = 5
_QUIET_SECONDS = 3.0
"""Longer than the two seconds after writes in which a gateway blames no read."""
_BEHAVIOUR_KINDS = (ViolationKind.NOT_IDEMPOTENT, ViolationKind.NOT_REVERSIBLE, ViolationKind.NOT_DETERMINISTIC)
_UNTESTED = "behaviours are not tested"
_GATEWAY_CONTROLS = {
    "the state of tools is not compared": (
        "violations_state_ignored", (ViolationKind.READ_THAT_WRITES, ViolationKind.WRITE_WITHOUT_EFFECT),
    ),
    "results and errors are not compared with schemas": (
        "violations_schemas_ignored", (ViolationKind.WRONG_OUTPUT, ViolationKind.WRONG_ERROR),
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The tools of some seeds, and the gateway that serves them."""

    project: Project
    labels: dict[str, Label]
    gateway: GatewayHandle


async def prove(sandbox: Sandbox) -> Verdict:
    seed = _choose_seed(sandbox)
    sandbox.log(f"seed {seed}")
    rng, findings = random.Random(seed), ViolationFindings()
    postgres, issuer = await sandbox.start_postgres(), create_issuer()
    batch_count, seeds_per_batch = sandbox.pick_size(quick=1, full=5), sandbox.pick_size(quick=1, full=5)
    controls: dict[str, bool] = {}
    for number in range(batch_count):
        drafts = [draft for _ in range(seeds_per_batch) for draft in draw_tools(rng)]
        batch = await _start_batch(sandbox, postgres.dsn, issuer, f"gateway-{number + 1}", drafts, rng)
        judge_tools(findings, batch.labels, await _check_tools(batch, batch.labels, seed))
        sandbox.log(
            f"{findings.violation_count} violations: {findings.caught_by_test} caught by their tests, "
            f"{findings.caught_at_first_call} at their first calls"
        )
        if not controls:
            controls[_UNTESTED] = await _can_catch_untested_behaviours(batch, seed)
        await batch.gateway.child.stop()
        if number + 1 < batch_count:
            await asyncio.sleep(_QUIET_SECONDS)
    if sandbox.full:
        controls |= await _try_gateway_variants(sandbox, postgres.dsn, issuer, seed)
    figures = {
        **build_figures(findings),
        "imports_shared_with_the_generator": len(find_shared_imports()),
        "seeds": batch_count * seeds_per_batch,
        "seed": seed,
    }
    return Verdict(figures=figures, controls=controls, notes=list_notes(findings, _SHOWN))


def _choose_seed(sandbox: Sandbox) -> int:
    if _SEED_VARIABLE in os.environ:
        return int(os.environ[_SEED_VARIABLE])
    return secrets.randbits(32) if sandbox.full else _QUICK_SEED


async def _start_batch(
    sandbox: Sandbox, dsn: str, issuer: Issuer, name: str, drafts: Sequence[ToolDraft], rng: random.Random
) -> Batch:
    project = Project.create(sandbox.folder / f"project-of-{name}")
    labels = write_tools(project, drafts, rng)
    gateway = await start_gateway(sandbox, dsn, issuer, name=name, tool_folder=project.tools)
    sandbox.log(f"{len(labels)} tools are registered, with those that undo them and show their state")
    return Batch(project=project, labels=labels, gateway=gateway)


async def _check_tools(batch: Batch, names: Iterable[str], seed: int) -> dict[str, Observation]:
    """Run the checks, which get the names of the tools and nothing of what they are."""
    caller = GatewayCaller(url=batch.gateway.url, token=batch.gateway.issuer.issue_token("ana"))
    first_calls = {name: batch.project.first_calls[name] for name in sorted(names)}
    return await asyncio.to_thread(check_tools, caller, batch.project.plans, first_calls, seed=seed)


async def _can_catch_untested_behaviours(batch: Batch, seed: int) -> bool:
    with violations_behaviours_untested.open_tester():
        return await _is_blind_to(batch, _BEHAVIOUR_KINDS, seed)


async def _try_gateway_variants(sandbox: Sandbox, dsn: str, issuer: Issuer, seed: int) -> dict[str, bool]:
    """Try each variant with tools that have every fault of the kinds that it cannot see."""
    rng = random.Random(f"{seed} controls")
    drafts = draw_violations(rng, [kind for _, kinds in _GATEWAY_CONTROLS.values() for kind in kinds])
    batch = await _start_batch(sandbox, dsn, issuer, "controls", drafts, rng)
    controls = {}
    for control, (variant, kinds) in _GATEWAY_CONTROLS.items():
        await restart_as_variant(batch.gateway, variant)
        controls[control] = await _is_blind_to(batch, kinds, seed)
    return controls


async def _is_blind_to(batch: Batch, kinds: Collection[ViolationKind], seed: int) -> bool:
    """Tell whether a variant catches none of the violations of some kinds by the check that fits."""
    labels = {name: label for name, label in batch.labels.items() if label.kind in kinds}
    findings = ViolationFindings()
    judge_tools(findings, labels, await _check_tools(batch, labels, seed))
    return findings.violation_count > 0 and not findings.catches
