"""Build the report of an observation: who did what to which systems, what was unusual, and a first policy.

Runs as a job in a process of its own, because callers choose how many calls and arguments there are.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from deputize.govern.observation.argument_rules import find_unusual_arguments
from deputize.govern.observation.observed_call import ObservedCall, parse_call
from deputize.govern.observation.oddities import OddCalls, group_calls
from deputize.govern.observation.policy_draft import draft_policy
from deputize.govern.observation.sequence_rules import find_unusual_sequences
from deputize.govern.observation.usage_rules import find_unusual_usage

DRAFT_PATH: Final = "observed.cedar"
RuleSet = Callable[[Sequence[ObservedCall], OddCalls], None]
# Those about sequences read what the others found.
RULES: Final[tuple[RuleSet, ...]] = (find_unusual_usage, find_unusual_arguments, find_unusual_sequences)
_MAX_ROWS: Final = 500


def find_odd_calls(calls: Sequence[ObservedCall], rules: Sequence[RuleSet] = RULES) -> OddCalls:
    """Apply the rules to calls in the order of time."""
    odd_calls = OddCalls()
    for find_unusual in rules:
        find_unusual(calls, odd_calls)
    return odd_calls


def build_report(calls: Sequence[ObservedCall]) -> dict[str, Any]:
    """Build the report of calls in the order of time."""
    odd_calls = find_odd_calls(calls)
    ordinary_calls = [call for call in calls if not odd_calls.is_odd(call) and not call.is_refused]
    unusual = odd_calls.to_json(calls)
    return {
        "calls": len(calls),
        "first_ms": calls[0].at_ms if calls else None,
        "last_ms": calls[-1].at_ms if calls else None,
        "uses": _list_uses(calls),
        "days": [
            {"day_ms": day * 86_400_000, "calls": count}
            for day, count in sorted(Counter(call.day for call in calls).items())
        ],
        "hours": _count_hours(calls),
        "unusual_count": len(unusual),
        "unusual": unusual[:_MAX_ROWS],
        "unusual_by_kind": dict(
            Counter(each.kind.value for oddities in odd_calls.by_call.values() for each in oddities).most_common()
        ),
        "secrets": _list_secrets(calls),
        "policy": {
            "path": DRAFT_PATH,
            "calls": len(ordinary_calls),
            "text": draft_policy(ordinary_calls, calls, DRAFT_PATH),
        },
    }


def report_job(payload: bytes) -> bytes:
    """Build the report of the calls in a payload; the reply is JSON."""
    calls = [parse_call(each) for each in orjson.loads(payload)]
    return orjson.dumps(build_report(sorted(calls, key=lambda call: (call.at_ms, call.call_id))))


def _count_hours(calls: Sequence[ObservedCall]) -> list[int]:
    counts = Counter(call.hour for call in calls)
    return [counts[hour] for hour in range(24)]


def _list_uses(calls: Sequence[ObservedCall]) -> list[dict[str, Any]]:
    """List who called what how often, most calls first."""
    uses = [
        {
            "user": user,
            "agents": list(agents),
            "system": own_calls[0].system,
            "tool": tool,
            "effects": own_calls[-1].effects,
            "inferred_effects": own_calls[-1].inferred_effects,
            "calls": len(own_calls),
            "failures": sum(call.has_failed for call in own_calls),
            "refusals": sum(call.is_refused for call in own_calls),
            "cost_micros": sum(call.cost_micros for call in own_calls),
        }
        for (user, agents, tool), own_calls in group_calls(
            calls, lambda call: (call.user, call.agents, call.tool)
        ).items()
    ]
    return sorted(uses, key=lambda each: (-each["calls"], each["tool"], each["user"]))[:_MAX_ROWS]


def _list_secrets(calls: Sequence[ObservedCall]) -> list[dict[str, Any]]:
    """List where secrets were seen in arguments: agent, tool and argument, never the value."""
    counts = Counter((call.actor, call.tool, name) for call in calls for name in call.secret_facts)
    return [
        {"actor": actor, "tool": tool, "argument": name, "calls": count}
        for (actor, tool, name), count in counts.most_common(_MAX_ROWS)
    ]
