"""Carry out every known attack on running gateways, and count those that succeed.

Each module of `attacks/` is a class of attacks. It is carried out against the product, and once more against a variant
that has the fault of 0.1.0 again, where the attempts its control names must succeed.
"""

import asyncio
import importlib
import pkgutil
from collections import Counter
from typing import cast

from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.red_team import attacks
from proofs.red_team.arena import Arena
from proofs.red_team.attack import AttackClass, AttackLog, Attempt, find_untried, is_control_caught, judge_attempts
from proofs.red_team.same_user import SAME_USER_LIMITS

NAME = "red_team"
PROMISE = (
    "No known attack succeeds in production or with dev --user; in dev on the agent's own account only those listed do."
)

QUICK_CLASSES = frozenset({"disclosure"})
"""Classes that are carried out in the quick form; every one is in the full form."""
_CLASSES_AT_ONCE = 2


def load_attack_classes() -> list[AttackClass]:
    """Load the modules of `attacks/`, in the order of their names."""
    names = sorted(module.name for module in pkgutil.iter_modules(attacks.__path__))
    return [cast("AttackClass", importlib.import_module(f"{attacks.__name__}.{name}")) for name in names]


async def prove(sandbox: Sandbox) -> Verdict:
    classes = [each for each in load_attack_classes() if sandbox.full or each.NAME in QUICK_CLASSES]
    # The gateways of all classes run until the end.
    postgres = await sandbox.start_postgres(settings={"max_connections": "600"})
    slots = asyncio.Semaphore(_CLASSES_AT_ONCE)

    async def attack_class(each: AttackClass) -> tuple[list[Attempt], bool]:
        async with slots:
            log = AttackLog(each.NAME)
            await each.attack(Arena(sandbox=sandbox, postgres=postgres, name=each.NAME), log)
            control_log = AttackLog(each.NAME, only=each.CONTROL.attempts)
            control_arena = Arena(sandbox=sandbox, postgres=postgres, name=each.NAME, variant=each.CONTROL.variant)
            await each.attack(control_arena, control_log)
            _print_attempts(sandbox, log.attempts, "")
            _print_attempts(sandbox, control_log.attempts, f" [{each.CONTROL.variant}]")
            return log.attempts, is_control_caught(each.CONTROL, control_log.attempts)

    results = await asyncio.gather(*(attack_class(each) for each in classes))
    attempts = [attempt for found, _ in results for attempt in found]
    controls = {each.CONTROL.variant: is_caught for each, (_, is_caught) in zip(classes, results, strict=True)}
    return _build_verdict(sandbox, attempts, controls)


def _print_attempts(sandbox: Sandbox, attempts: list[Attempt], suffix: str) -> None:
    for each in attempts:
        if each.finding is None:
            state = f"broken: {each.error}"
        else:
            state = f"{'SUCCEEDED' if each.finding.succeeded else 'refused'}: {each.finding.evidence}"
        sandbox.log(f"{each.attack_class}{suffix}: {each.name} ({each.form}): {state}")


def _build_verdict(sandbox: Sandbox, attempts: list[Attempt], controls: dict[str, bool]) -> Verdict:
    wrong = judge_attempts(attempts, SAME_USER_LIMITS)
    wrong["broken_attempts"] += find_untried(attempts, SAME_USER_LIMITS)
    for sentences in wrong.values():
        for sentence in sentences:
            sandbox.log(f"wrong: {sentence}")
    counts = Counter(each.attack_class for each in attempts)
    figures: dict[str, Figure] = {
        "attempts": len(attempts),
        "classes": len(counts),
        **{name: len(sentences) for name, sentences in wrong.items()},
    }
    return Verdict(
        figures=figures,
        controls=controls,
        notes=[
            *(f"{name}: {count} attempts" for name, count in sorted(counts.items())),
            *(
                f"succeeds in development on the agent's own account: {name}: {why}"
                for name, why in SAME_USER_LIMITS.items()
            ),
        ],
    )
