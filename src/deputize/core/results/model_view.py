"""Build what a model sees of a result that is stored: a part of it within a budget, and how to read on.

The part has one of five levels, of which the first that fits is chosen: L0 is the result itself, which needs no
reference; L1 its first parts; L2 the tool's own summary; L3 its short values; L4 its type and size.
"""

from typing import Any, Final, Literal

from deputize.core.results.outline import (
    cut_text,
    cut_value,
    describe_shape,
    describe_size,
    extract_facts,
    measure_length,
)
from deputize.core.value_types import frozen

READ_TOOL: Final = "results.read"
# What a reference takes without any part of the result: a smaller budget of a tool counts as this one.
MIN_LENGTH: Final = 800
# The shortest part that tells more than a summary.
_MIN_PART_LENGTH: Final = 200
_MAX_SUMMARY_LENGTH: Final = 2_000
# What the lowest level takes.
_MIN_SIZE_LENGTH: Final = 80

Level = Literal["L1", "L2", "L3", "L4"]


@frozen
class ModelView:
    """What a model sees instead of a result, and how much of the result that is."""

    content: dict[str, Any]
    level: Level


def build_model_view(
    payload: Any, *, summary: str | None, reference: str | None, size: int, expires_at: str | None, max_length: int
) -> ModelView:
    """Build the view. Without a reference the result could not be stored, and the view says so."""
    frame: dict[str, Any] = {
        "reference": reference,
        "level": "L1",
        "shape": describe_shape(payload),
        "bytes": size,
        "expires_at": expires_at,
        "read_on": _describe_reading(payload, reference),
        "preview": None,
    }
    max_length = max(max_length, MIN_LENGTH)
    if max_length - measure_length(frame) < _MIN_SIZE_LENGTH:
        # Names with many escapes.
        frame["shape"] = describe_size(payload)
    space = max_length - measure_length(frame) + len("null")
    level, preview = _choose_preview(payload, summary, space)
    return ModelView(content={**frame, "level": level, "preview": preview}, level=level)


def _choose_preview(payload: Any, summary: str | None, space: int) -> tuple[Level, Any]:
    part = cut_value(payload, space) if space >= _MIN_PART_LENGTH else None
    if part is not None:
        return "L1", part
    if summary and measure_length(summary) <= min(space, _MAX_SUMMARY_LENGTH):
        return "L2", summary
    facts = extract_facts(payload, space)
    if facts is not None:
        return "L3", facts
    return "L4", cut_text(describe_size(payload), 60)


def _describe_reading(payload: Any, reference: str | None) -> str:
    if reference is None:
        return "This is a part of the result. The rest could not be stored and cannot be read."
    example = _find_example_path(payload)
    return (
        f'This is a part of the result. Read more with results_read: {{"reference": "{reference}", '
        f'"path": "{example}", "offset": 0, "limit": 20}}.'
    )


def _find_example_path(payload: Any) -> str:
    """Find a list or text near the top that is worth reading on."""
    if isinstance(payload, dict):
        candidates: list[tuple[int, str]] = [
            (len(member), name)
            for name, member in payload.items()
            if isinstance(member, str | list | tuple) and len(name) <= 40 and name.isidentifier()
        ]
        if candidates:
            return "/" + max(candidates)[1]
    return ""
