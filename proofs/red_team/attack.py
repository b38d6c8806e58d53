"""Describe attacks: attempts and what came of them, classes of attempts, and the variant that a class must beat."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from proofs.red_team.arena import Arena

Form = Literal["production", "dev with --user", "dev as the same user"]
"""How the gateway that is attacked is run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one attempt achieved, and what shows it: an answer, a row, a file, a figure."""

    succeeded: bool
    evidence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One attack that was really carried out; `error` says why it was not."""

    attack_class: str
    name: str
    form: Form
    finding: Finding | None
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """A gateway with the fault of 0.1.0, and the attempts that must succeed against it."""

    variant: str
    attempts: frozenset[str]


Attack = Callable[[], Awaitable[Finding]]


class AttackLog:
    """Carry out attempts and record what came of each. In a control only those that must succeed are carried out."""

    def __init__(self, attack_class: str, only: frozenset[str] | None = None) -> None:
        self._attack_class = attack_class
        self._only = only
        self._baselines: dict[Attack, Finding] = {}
        self.attempts: list[Attempt] = []

    async def attempt(
        self, name: str, attack: Attack, *, baseline: Attack | None = None, form: Form = "production"
    ) -> None:
        """Carry out one attack. One that breaks has shown nothing, and is recorded as broken.

        `baseline` does the same with the right authority. Where that fails, too, a refusal shows nothing.
        """
        if self._only is not None and name not in self._only:
            return
        if any(each.name == name and each.form == form for each in self.attempts):
            raise ValueError(f"{self._attack_class} has two attempts named {name!r}")
        finding, error = None, ""
        try:
            finding = await attack()
            if baseline is not None:
                await self._check_baseline(baseline)
        except Exception as failure:  # noqa: BLE001 - whatever breaks an attempt is recorded, and fails the proof
            error = f"{type(failure).__name__}: {failure}"
            finding = None
        self.attempts.append(
            Attempt(attack_class=self._attack_class, name=name, form=form, finding=finding, error=error)
        )

    async def _check_baseline(self, baseline: Attack) -> None:
        """Carry out a baseline once, however many attempts share it."""
        if baseline not in self._baselines:
            self._baselines[baseline] = await baseline()
        if not self._baselines[baseline].succeeded:
            raise RuntimeError(f"with the right authority it fails, too: {self._baselines[baseline].evidence}")


class AttackClass(Protocol):
    """A module of `proofs/red_team/attacks`: its name, its control, and the function that carries out its attempts.

    `attack` builds what it attacks through the arena, which starts the control's variant where one is tried.
    """

    NAME: str
    CONTROL: Control

    async def attack(self, arena: Arena, log: AttackLog) -> None: ...


def judge_attempts(attempts: list[Attempt], listed: Mapping[str, str]) -> dict[str, list[str]]:
    """Sort out what must not be: successes by form, and differences to what is listed for the same user.

    `listed` are the attempts that succeed where agent and gateway are the same user, each with its reason.
    """
    wrong: dict[str, list[str]] = {
        "succeeded_in_production": [],
        "succeeded_with_user": [],
        "succeeded_as_same_user_and_unlisted": [],
        "listed_and_refused": [],
        "broken_attempts": [],
    }
    for each in attempts:
        if each.finding is None:
            wrong["broken_attempts"].append(f"{each.attack_class}: {each.name}: {each.error}")
            continue
        text = f"{each.attack_class}: {each.name}: {each.finding.evidence}"
        if each.form == "production" and each.finding.succeeded:
            wrong["succeeded_in_production"].append(text)
        elif each.form == "dev with --user" and each.finding.succeeded:
            wrong["succeeded_with_user"].append(text)
        elif each.form == "dev as the same user" and each.finding.succeeded and each.name not in listed:
            wrong["succeeded_as_same_user_and_unlisted"].append(text)
        elif each.form == "dev as the same user" and not each.finding.succeeded and each.name in listed:
            wrong["listed_and_refused"].append(text)
    return wrong


def find_untried(attempts: list[Attempt], listed: Mapping[str, str]) -> list[str]:
    """Find what is listed for the same user and was not tried, where anything was tried as the same user."""
    tried = {each.name for each in attempts if each.form == "dev as the same user"}
    return [f"{name}: listed for the same user, and not tried" for name in listed if tried and name not in tried]


def is_control_caught(control: Control, attempts: list[Attempt]) -> bool:
    """Tell whether every attempt of the control succeeded against its variant."""
    succeeded = {each.name for each in attempts if each.finding is not None and each.finding.succeeded}
    return bool(control.attempts) and control.attempts <= succeeded
