"""Find calls whose arguments, result or cost are unusual for their tool, and those that name or contain secrets."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from deputize.core.display_text import to_display_text
from deputize.govern.observation.argument_shapes import (
    SENSITIVE_PARTS,
    Shape,
    find_text_shape,
    iter_fact_names,
    list_numbers,
    make_range_test,
    read_key,
    read_texts,
)
from deputize.govern.observation.observed_call import ObservedCall, find_share
from deputize.govern.observation.oddities import MAX_RARE, MIN_CALLS, OddCalls, OddityKind, group_calls

_KIND_BY_SHAPE: Final[dict[Shape, OddityKind]] = {
    "choice": OddityKind.RARE_VALUE,
    "domain": OddityKind.RARE_DOMAIN,
    "host": OddityKind.RARE_HOST,
    "folder": OddityKind.RARE_FOLDER,
}
_MAX_SHOWN: Final = 60
_MIN_LONG_TEXT: Final = 500
_MIN_LARGE_RESULT: Final = 20_000
_LARGE_FACTOR: Final = 10
_COST_FACTOR: Final = 5
_MANY_FACTOR: Final = 3


def find_unusual_arguments(calls: Sequence[ObservedCall], odd_calls: OddCalls) -> None:
    """Apply the rules about arguments, results and costs."""
    for tool_calls in group_calls(calls, lambda call: call.tool).values():
        usual_names = _find_usual_secrets(tool_calls)
        for call in tool_calls:
            _find_secrets(call, usual_names, odd_calls)
        if len(tool_calls) < MIN_CALLS:
            continue
        for name in iter_fact_names(tool_calls):
            _find_unusual_values(tool_calls, name, odd_calls)
        _find_large(tool_calls, odd_calls)


def _find_usual_secrets(calls: Sequence[ObservedCall]) -> frozenset[str]:
    """Find the arguments that are for secrets: most of their values were withheld."""
    counts = Counter(name for call in calls for name in call.secret_facts)
    value_counts = Counter(name for call in calls for name in call.facts)
    return frozenset(name for name, count in counts.items() if count >= MIN_CALLS and count > value_counts[name])


def _find_secrets(call: ObservedCall, usual_names: frozenset[str], odd_calls: OddCalls) -> None:
    secret_names = [name for name in call.secret_facts if name not in usual_names]
    if secret_names:
        names = ", ".join(secret_names)
        reason = f"{names} was not recorded: it has the form of a secret, or is too long to tell"
        odd_calls.add(call, OddityKind.SECRET_IN_ARGUMENT, reason)
    if call.suspicions:
        odd_calls.add(call, OddityKind.INJECTION_SUSPICION, f"looks like an injection: {', '.join(call.suspicions)}")
    for name, value in call.facts.items():
        for text in read_texts(value):
            if any(part in text for part in SENSITIVE_PARTS) or "../.." in text or text.startswith(".env"):
                reason = f"{name} names where secrets are kept: {_show(text)}"
                odd_calls.add(call, OddityKind.SENSITIVE_PATH, reason)


def _find_unusual_values(calls: Sequence[ObservedCall], name: str, odd_calls: OddCalls) -> None:
    present_calls = [call for call in calls if name in call.facts]
    if len(present_calls) <= MAX_RARE:
        for call in present_calls:
            reason = f"{name} was given in {len(present_calls)} of {len(calls)} calls"
            odd_calls.add(call, OddityKind.RARE_ARGUMENT, reason)
        return
    numbers = list_numbers(present_calls, name)
    if numbers:
        _find_far_numbers(present_calls, name, numbers, odd_calls)
        return
    flags = Counter(value for call in present_calls if isinstance(value := call.facts[name], bool))
    shape = find_text_shape(present_calls, name)
    for call in present_calls:
        value = call.facts[name]
        if isinstance(value, bool):
            if flags[value] <= MAX_RARE and len(present_calls) >= MIN_CALLS:
                reason = f"{name} was {str(value).lower()} in {flags[value]} of {len(present_calls)} calls"
                odd_calls.add(call, OddityKind.RARE_VALUE, reason)
            continue
        for text in read_texts(value):
            if shape.is_rare(text):
                key = read_key(shape.shape, text)
                reason = f"{name} was {_show(key)} in {shape.counts[key]} of {len(present_calls)} calls"
                odd_calls.add(call, _KIND_BY_SHAPE[shape.shape], reason)
                break
    _find_long_values(present_calls, name, odd_calls)


def _find_far_numbers(calls: Sequence[ObservedCall], name: str, numbers: Sequence[int], odd_calls: OddCalls) -> None:
    if len(numbers) < MIN_CALLS:
        return
    is_far, usual = make_range_test(numbers), (find_share(numbers, 0.05), find_share(numbers, 0.95))
    for call in calls:
        value = call.facts[name]
        if isinstance(value, int) and not isinstance(value, bool) and is_far(value):
            reason = f"{name} was {value}, usually {usual[0]} to {usual[1]}"
            odd_calls.add(call, OddityKind.NUMBER_OUT_OF_RANGE, reason)


def _find_long_values(calls: Sequence[ObservedCall], name: str, odd_calls: OddCalls) -> None:
    if len(calls) < MIN_CALLS:
        return
    usual_length = find_share(sorted(call.lengths.get(name, 0) for call in calls), 0.95)
    is_list = isinstance(calls[0].facts[name], tuple)
    limit = max(_MANY_FACTOR * usual_length, usual_length + 5) if is_list else _LARGE_FACTOR * usual_length
    kind, unit = (OddityKind.MANY_ITEMS, "items") if is_list else (OddityKind.LONG_TEXT, "characters")
    for call in calls:
        length = call.lengths.get(name, 0)
        if length > (limit if is_list else max(limit, _MIN_LONG_TEXT)):
            odd_calls.add(call, kind, f"{name} had {length} {unit}, usually at most {usual_length}")


def _find_large(calls: Sequence[ObservedCall], odd_calls: OddCalls) -> None:
    sizes, costs = (sorted(getattr(call, name) for call in calls) for name in ("result_bytes", "cost_micros"))
    usual_size, usual_cost = find_share(sizes, 0.95), find_share(costs, 0.95)
    for call in calls:
        if call.result_bytes > max(_LARGE_FACTOR * usual_size, _MIN_LARGE_RESULT):
            reason = f"the result had {call.result_bytes} bytes, usually at most {usual_size}"
            odd_calls.add(call, OddityKind.LARGE_RESULT, reason)
        if usual_cost > 0 and call.cost_micros > _COST_FACTOR * usual_cost:
            reason = f"it cost {call.cost_micros / 1e6:g}, usually at most {usual_cost / 1e6:g}"
            odd_calls.add(call, OddityKind.EXPENSIVE, reason)


def _show(text: str) -> str:
    return to_display_text(text, _MAX_SHOWN)
