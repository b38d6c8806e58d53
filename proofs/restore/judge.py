"""Judge what happened around a restore, promotions and a rolling restart."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proofs.kit.ledger import Effect
from proofs.kit.report import Figure
from proofs.kit.write_load import Load


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreFacts:
    """What callers and the operator saw of a restore."""

    forbidden_count: int
    acknowledged_after_stop: int
    has_new_gateway_served: bool
    kept_keys: Sequence[str]
    """Keys of writes that were acknowledged before the moment that was restored."""
    lost_keys: Sequence[str]
    """Keys of acknowledged writes that the restored database does not know."""
    keys_during: Sequence[str]
    """Keys of writes that were acknowledged while the database was being replaced, or are open in the restored one."""
    answers_after: Mapping[str, int]
    """The answers to the lost keys after the confirmation, counted by status."""
    seconds_to_stop: float
    is_confirmed: bool
    status_of_statement: int
    """The answer to a caller who states that its call did not happen."""


def judge_restore(facts: RestoreFacts, effects: Sequence[Effect]) -> dict[str, int | float]:
    """Judge one restore by the effects before any caller stated that its call did not happen."""
    effect_counts = Counter(each.call for each in effects)
    return {
        "calls_on_authority_taken_back": facts.forbidden_count,
        "acknowledged_while_stopped": facts.acknowledged_after_stop,
        "new_gateways_that_served": int(facts.has_new_gateway_served),
        "silent_repeats": sum(
            effect_counts[key] > 1 for key in {*facts.kept_keys, *facts.lost_keys, *facts.keys_during}
        ),
        "kept_keys_lost": len(set(facts.kept_keys) & set(facts.lost_keys)),
        "lost_keys": len(facts.lost_keys),
        "lost_keys_not_refused": len(facts.lost_keys) - facts.answers_after.get("409", 0),
        "seconds_to_stop": round(max(facts.seconds_to_stop, 0.0), 3),
        "confirmations_that_failed": int(not facts.is_confirmed) + int(facts.status_of_statement != 200),
    }


def judge_restores(restores: Sequence[Mapping[str, int | float]]) -> dict[str, Figure]:
    """Add up the figures of restores; the slowest gateway counts."""
    seconds = max((each["seconds_to_stop"] for each in restores), default=0.0)
    names = restores[0].keys() - {"seconds_to_stop"} if restores else ()
    sums = {name: sum(each[name] for each in restores) for name in sorted(names)}
    return {"restores": len(restores), **sums, "seconds_to_stop": seconds}


def count_forbidden(success_count: int, effects: Sequence[Effect]) -> int:
    """Count calls on authority that was taken back: those that succeeded, or those that had an effect, if more."""
    return max(success_count, sum(each.call.startswith("forbidden-") for each in effects))


def count_repeats(keys: Sequence[str], before: Sequence[Effect], after: Sequence[Effect]) -> int:
    """Count the keys whose writes happened again between two looks at the ledger."""
    counts_before, counts_after = (Counter(each.call for each in effects) for effects in (before, after))
    return sum(counts_after[key] > counts_before[key] for key in keys)


def judge_promotions(count: int, alarms: int, acknowledged_count: int, found_count: int) -> dict[str, Figure]:
    return {
        "promotions": count,
        "false_alarms": alarms,
        "acknowledged": acknowledged_count,
        "acknowledged_and_lost": acknowledged_count - found_count,
    }


def judge_rolling_restart(load: Load) -> dict[str, Figure]:
    return {"rolling_calls": load.count, "rolling_calls_failed": load.failures.total()}
