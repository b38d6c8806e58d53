"""Run proofs: `python -m proofs NAME [--full] [--json FILE]`, and `list`, `all`, `results` in place of a name."""

import argparse
import asyncio
import importlib
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from proofs.kit.declarations import Declaration, get_declaration
from proofs.kit.facts import compute_digests, read_commit_facts, read_machine_facts
from proofs.kit.proof_queue import FAILED, INCONCLUSIVE, PASSED, run_quick_proofs
from proofs.kit.report import (
    Verdict,
    has_passed,
    has_wrong_result,
    is_timeout,
    render_json,
    render_last_line,
)
from proofs.kit.sandbox import Sandbox
from proofs.kit.stored_results import RESULTS, describe_results

_FOLDER = Path(__file__).parent
TIMED_PROOFS = frozenset({"limits", "overhead", "policy", "proxy", "run_overhead", "sandbox_cost", "vault"})
"""Proofs that compare times even in their quick form: nothing else runs beside them."""
LONG_PROOFS = frozenset({"approvals", "conformance", "first_day", "recovery", "upgrade"})
"""Proofs whose quick form takes longest: they begin first, so that the others fill the time beside them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    name: str
    promise: str
    prove: Callable[[Sandbox], Awaitable[Verdict]]
    declaration: Declaration | None = None
    """What it covers and has to show; without one, `prove` returns its bars itself."""
    is_full_only: bool = False
    """Even its quick form takes too long for every run of CI: with `all` it runs only in full."""


def list_names() -> list[str]:
    """List the experiments: modules of this folder, and folders that hold an `experiment.py`."""
    modules = {path.stem for path in _FOLDER.glob("*.py")} - {"__init__", "__main__"}
    return sorted(modules | {path.parent.name for path in _FOLDER.glob("*/experiment.py")})


def load_proof(name: str) -> Proof:
    has_folder = (_FOLDER / name / "experiment.py").exists()
    module = importlib.import_module(f"proofs.{name}.experiment" if has_folder else f"proofs.{name}")
    if name != module.NAME:
        raise ValueError(f"proofs/{name}.py calls itself {module.NAME!r}: a proof bears its module's name")
    return Proof(
        name=module.NAME,
        promise=module.PROMISE,
        prove=module.prove,
        declaration=get_declaration(name),
        is_full_only=getattr(module, "FULL_ONLY", False),
    )


async def attempt_proof(proof: Proof, *, full: bool, root: Path = _FOLDER.parent) -> tuple[Verdict, dict[str, object]]:
    """Run the proof in a world of its own; a proof that breaks off has failed, and its log says why."""
    began = datetime.now(UTC)
    code_facts = read_code_facts(proof, root)
    sandbox = Sandbox(full=full)
    sandbox.log(f"{proof.name} ({'full' if full else 'quick'} form): {proof.promise}")
    try:
        async with sandbox:
            verdict = apply_declaration(proof.declaration, await proof.prove(sandbox), full=full)
            if not has_passed(verdict):
                sandbox.print_logs()
    except Exception as failure:  # noqa: BLE001 - the interface: whatever a proof raises is its failure, printed and counted
        traceback.print_exception(failure)
        notes = [f"broke off with {type(failure).__name__}"]
        verdict = Verdict(figures={}, bars={}, notes=notes, has_timed_out=is_timeout(failure))
    seconds = (datetime.now(UTC) - began).total_seconds()
    # Processes start during a run: code that changed meanwhile was measured in part.
    has_changed = read_code_facts(proof, root) != code_facts
    run_facts: dict[str, object] = {
        **code_facts,
        "dirty": code_facts["dirty"] or has_changed,
        "machine": read_machine_facts(sandbox.postgres_version),
        "started": began.isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
    }
    return verdict, run_facts


def read_code_facts(proof: Proof, root: Path) -> dict[str, object]:
    """Read which commit is measured, whether it is changed, and the digests of what the proof covers."""
    packages = proof.declaration.covers if proof.declaration else ()
    return {**read_commit_facts(root), "digests": compute_digests(proof.name, packages, root)}


def apply_declaration(declaration: Declaration | None, verdict: Verdict, *, full: bool) -> Verdict:
    """Set the declared bars on what was found; controls that differ from the declared ones are an error."""
    if declaration is None:
        return verdict
    if verdict.bars:
        raise ValueError(f"{declaration.name} returned bars: they are declared in proofs.toml, and nowhere else")
    unknown, missing = (
        set(verdict.controls) - set(declaration.controls),
        set(declaration.controls) - set(verdict.controls),
    )
    if unknown or (full and missing):
        raise ValueError(
            f"{declaration.name} tried controls that are not in proofs.toml ({', '.join(sorted(unknown)) or 'none'}), "
            f"or left some out ({', '.join(sorted(missing)) or 'none'}): change the one or the other"
        )
    bars = declaration.full_bars if full else declaration.quick_bars
    return replace(verdict, bars=bars, load_sensitive=declaration.load_sensitive)


async def run_proof(proof: Proof, *, full: bool, json: Path | None) -> Verdict:
    task = asyncio.current_task()
    if task is not None:  # a signal to the proof ends its children, too
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    verdict, about = await attempt_proof(proof, full=full)
    for note in verdict.notes:
        print(f"note: {note}", file=sys.stderr)
    target = json or (RESULTS / f"{proof.name}.json" if full else None)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(render_json(proof.name, verdict, full=full, run_facts=about))
    sys.stderr.flush()
    print(render_last_line(proof.name, verdict), flush=True)
    return verdict


def run_proof_now(proof: Proof, *, full: bool, json: Path | None) -> Verdict:
    missing = None if proof.declaration is None else proof.declaration.explain_missing_programs()
    if missing is not None:
        sys.exit(missing)
    import uvloop  # noqa: PLC0415 - only runs need it; checking results is quick without

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run_proof(proof, full=full, json=json))
    except (asyncio.CancelledError, KeyboardInterrupt):
        sys.exit(f"{proof.name}: ended from outside before it was done: FAIL")


def run_all_proofs(*, full: bool) -> bool:
    """Run every proof: in full one after another, in the quick form several at a time where no times are compared."""
    if full:
        codes = {name: get_exit_code(run_proof_now(load_proof(name), full=True, json=None)) for name in list_names()}
    else:
        codes = {name: run.code for name, run in run_quick_proofs(list_quick_proofs(), TIMED_PROOFS).items()}
    failures = [name for name, code in codes.items() if code != PASSED]
    summary = f"FAIL: {', '.join(failures)}" if failures else "PASS"
    print(f"{len(codes) - len(failures)} of {len(codes)} proofs passed: {summary}")
    return not failures


def list_quick_proofs() -> list[str]:
    """List the proofs that have a quick form, the longest first."""
    names = [name for name in list_names() if not load_proof(name).is_full_only]
    return sorted(names, key=lambda name: name not in LONG_PROOFS)


def get_exit_code(verdict: Verdict) -> int:
    """Tell a wrong result, a missed control, or a proof that broke off from one that only missed a time or a size."""
    if has_passed(verdict):
        return PASSED
    if verdict.has_timed_out:
        return INCONCLUSIVE
    return FAILED if not verdict.bars or has_wrong_result(verdict) else INCONCLUSIVE


def list_proofs() -> bool:
    for name in list_names():
        print(f"{name:20} {load_proof(name).promise}")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proofs", description="Run the proofs behind our figures.")
    parser.add_argument(
        "name",
        choices=[*list_names(), "list", "all", "results"],
        metavar="NAME",
        help="a proof, or list, all, or results: are the results in proofs/results of this code?",
    )
    parser.add_argument("--full", action="store_true", help="the published sizes instead of the quick ones")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the result of one proof")
    options = parser.parse_args()
    if options.name == "list":
        return 0 if list_proofs() else 1
    if options.name == "results":
        print("\n".join(describe_results()) or "no results are stored: run python -m proofs NAME --full")
        return 0
    if options.name == "all":
        return 0 if run_all_proofs(full=options.full) else 1
    return get_exit_code(run_proof_now(load_proof(options.name), full=options.full, json=options.json))


if __name__ == "__main__":
    sys.exit(main())
