"""Compare what two versions of a contract promise beside their schemas: behaviours, service levels, use of data."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from deputize.catalog.compatibility.changes import ChangeLevel, ContractChange
from deputize.core.contract.contract import Contract
from deputize.core.contract.effects import CompensationClass

_MAJOR, _MINOR = ChangeLevel.MAJOR, ChangeLevel.MINOR
# From the strongest to the weakest.
_COMPENSATIONS: Final[tuple[CompensationClass, ...]] = ("full", "semantic", "partial", "irreversible")
# Objectives that promise more the lower they are, and the higher they are.
_LOWER_IS_BETTER, _HIGHER_IS_BETTER = ("p99_seconds", "cost"), ("availability", "accuracy")


def _compare_behaviours(old: Contract, new: Contract) -> Iterator[ContractChange]:
    for each in sorted(set(old.behaviours) - set(new.behaviours)):
        yield _make_change(_MAJOR, "behaviours", f"does not promise {each} any more")
    for each in sorted(set(new.behaviours) - set(old.behaviours)):
        yield _make_change(_MINOR, "behaviours", f"promises {each} now")


def _compare_compensation(old: Contract, new: Contract) -> Iterator[ContractChange]:
    before, after = old.compensation, new.compensation
    if before == after:
        return
    if before is None or after is None:
        level = _MINOR if before is None else _MAJOR
        yield _make_change(level, "compensation", "is new" if before is None else "is gone")
        return
    ranks = [_COMPENSATIONS.index(each.compensation_class) for each in (before, after)]
    # No limit is the longest one.
    is_shorter = (after.within_seconds or float("inf")) < (before.within_seconds or float("inf"))
    level = _MAJOR if ranks[1] > ranks[0] or is_shorter else _MINOR
    yield _make_change(level, "compensation", "compensates less than before" if level is _MAJOR else "is different")


def _compare_user_interaction(old: Contract, new: Contract) -> Iterator[ContractChange]:
    if new.requires_user_interaction and not old.requires_user_interaction:
        yield _make_change(_MAJOR, "requires_user_interaction", "is true now: calls wait for a person")
    elif old.requires_user_interaction and not new.requires_user_interaction:
        yield _make_change(_MINOR, "requires_user_interaction", "is false now: calls do not wait for a person")


def _compare_open_world(old: Contract, new: Contract) -> Iterator[ContractChange]:
    if new.is_open_world and not old.is_open_world:
        yield _make_change(_MAJOR, "open_world", "is true or undeclared now, and was false")
    elif old.is_open_world and not new.is_open_world:
        yield _make_change(_MINOR, "open_world", "is false now")


def _compare_recipient(old: Contract, new: Contract) -> Iterator[ContractChange]:
    if old.recipient_argument != new.recipient_argument:
        level = _MINOR if old.recipient_argument is None else _MAJOR
        reason = f"is {new.recipient_argument or 'missing'} now, and was {old.recipient_argument or 'missing'}"
        yield _make_change(level, "recipient_argument", reason)


def _compare_labels(old: Contract, new: Contract) -> Iterator[ContractChange]:
    """Compare the labels: arguments must be accepted as before, and results must not carry more."""
    old_accepts, new_accepts = (each.labels.accepts if each.labels else None for each in (old, new))
    if new_accepts is not None and (old_accepts is None or not set(old_accepts) <= set(new_accepts)):
        yield _make_change(_MAJOR, "labels/accepts", "does not accept every label of before")
    elif _as_set(old_accepts) != _as_set(new_accepts):
        yield _make_change(_MINOR, "labels/accepts", "accepts more labels")
    old_adds, new_adds = (set(each.labels.adds or ()) if each.labels else set() for each in (old, new))
    for label in sorted(new_adds - old_adds):
        yield _make_change(_MAJOR, "labels/adds", f"adds {label} to results now, which policies may stop")
    for label in sorted(old_adds - new_adds):
        yield _make_change(_MINOR, "labels/adds", f"does not add {label} to results any more")


def _as_set(labels: tuple[str, ...] | None) -> frozenset[str] | None:
    return None if labels is None else frozenset(labels)


# Weakest first.
_BACKENDS: Final = (None, "interpreter", "namespaces", "gvisor")


def _compare_sandbox(old: Contract, new: Contract) -> Iterator[ContractChange]:
    """Compare the isolation: without a sandbox, nothing is promised."""
    before, after = old.sandbox, new.sandbox
    if before == after:
        return
    is_wider = before is not None and (
        after is None
        or after.tier > before.tier
        or not set(after.permissions or ()) <= set(before.permissions or ())
        or _BACKENDS.index(after.backend) < _BACKENDS.index(before.backend)
    )
    reason = "lets the tool do more than before" if is_wider else "is different"
    yield _make_change(_MAJOR if is_wider else _MINOR, "sandbox", reason)


def _compare_freshness(old: Contract, new: Contract) -> Iterator[ContractChange]:
    before, after = (each.freshness.max_age_seconds if each.freshness else 0 for each in (old, new))
    if after > before:
        yield _make_change(_MAJOR, "freshness", f"lets results be {after} s old, and before {before} s")
    elif old.freshness != new.freshness:
        yield _make_change(_MINOR, "freshness", "is different")


def _compare_concurrency(old: Contract, new: Contract) -> Iterator[ContractChange]:
    if old.concurrency_safe != new.concurrency_safe:
        level = _MAJOR if old.concurrency_safe else _MINOR
        yield _make_change(level, "concurrency_safe", f"is {str(new.concurrency_safe).lower()} now")


def _compare_interrupt(old: Contract, new: Contract) -> Iterator[ContractChange]:
    if old.interrupt != new.interrupt:
        level = _MINOR if old.interrupt is None else _MAJOR
        yield _make_change(level, "interrupt", f"is {new.interrupt or 'undeclared'} now")


def _compare_max_inline(old: Contract, new: Contract) -> Iterator[ContractChange]:
    if old.max_inline != new.max_inline:
        is_shorter = (new.max_inline or float("inf")) < (old.max_inline or float("inf"))
        reason = f"is {new.max_inline or 'unlimited'} now, and was {old.max_inline or 'unlimited'}"
        yield _make_change(_MAJOR if is_shorter else _MINOR, "max_inline", reason)


def _compare_objectives(old: Contract, new: Contract) -> Iterator[ContractChange]:
    before, after = (each.objectives.model_dump() if each.objectives else {} for each in (old, new))
    for name in (*_LOWER_IS_BETTER, *_HIGHER_IS_BETTER):
        if before.get(name) != after.get(name):
            level = _MAJOR if _is_weaker(name, before.get(name), after.get(name)) else _MINOR
            reason = f"is {_format_number(after.get(name))} now, and was {_format_number(before.get(name))}"
            yield _make_change(level, f"objectives/{name}", reason)


def _is_weaker(name: str, before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return after is None
    return after > before if name in _LOWER_IS_BETTER else after < before


def _format_number(value: Any) -> str:
    return "undeclared" if value is None else f"{value:g}"


def _make_change(level: ChangeLevel, path: str, reason: str) -> ContractChange:
    return ContractChange(level=level, path=f"/{path}", reason=reason)


PROMISE_RULES: Final[Mapping[str, Callable[[Contract, Contract], Iterator[ContractChange]]]] = {
    "behaviours": _compare_behaviours,
    "compensation": _compare_compensation,
    "requires_user_interaction": _compare_user_interaction,
    "open_world": _compare_open_world,
    "recipient_argument": _compare_recipient,
    "labels": _compare_labels,
    "sandbox": _compare_sandbox,
    "freshness": _compare_freshness,
    "concurrency_safe": _compare_concurrency,
    "interrupt": _compare_interrupt,
    "max_inline": _compare_max_inline,
    "objectives": _compare_objectives,
}
