"""Render what a contract promises beside its schemas, for `deputize tool show`.

Text written by tool authors is escaped, so that it cannot change what the terminal shows.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from deputize.core.display_text import to_display_text

_MAX_TEXT_LENGTH: Final = 300
# Fields with a line of their own, in the order in which they are shown.
_TITLES: Final[Mapping[str, str]] = {
    "behaviours": "behaviours",
    "authority_rank": "authority rank (1 to 100, the highest is believed)",
    "objectives": "objectives",
    "alerts": "alerts",
    "compensation": "compensation",
    "freshness": "freshness",
    "fallback": "alternatives while it is not available",
    "fallback_task": "task for a person, if none answers",
    "flow": "flow",
    "interrupt": "when interrupted",
    "max_inline": "inline up to, in characters",
    "recipient_argument": "recipient argument",
    "labels": "labels",
    "sandbox": "sandbox",
    "service_limits": "limits of its service",
    "native_ids": "native ids",
}
_SENTENCES: Final[Mapping[tuple[str, bool], str]] = {
    ("requires_user_interaction", True): "a person takes part in each call: calls of agents wait for approval",
    ("open_world", False): "deals only with what is known beforehand (closed world)",
    ("reads_state", True): "the state that a call changes is compared with what is declared",
    ("rolls_back", True): "the effect of a call whose result is rejected is taken back",
    ("concurrency_safe", True): "calls may run beside each other",
}


def render_promises(contract: Mapping[str, Any]) -> Iterator[str]:
    """Render one line for each promise that the contract makes; unset ones have none."""
    for (field, value), sentence in _SENTENCES.items():
        if contract.get(field) is value:
            yield sentence
    for field, title in _TITLES.items():
        if contract.get(field):
            yield f"{title}: {_shorten(_render_value(contract[field]))}"


def _render_value(value: Any) -> str:
    match value:
        case dict():
            return ", ".join(f"{name} {_render_inner(each)}" for name, each in value.items())
        case list() | tuple():
            return ", ".join(_render_value(each) for each in value)
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case _:
            return to_display_text(str(value))


def _render_inner(value: Any) -> str:
    return f"({_render_value(value)})" if isinstance(value, dict) else _render_value(value)


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_TEXT_LENGTH else text[: _MAX_TEXT_LENGTH - 1] + "…"
