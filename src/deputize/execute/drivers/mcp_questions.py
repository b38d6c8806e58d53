"""One request to a server, and what it asks back before it answers: heard where the operator lets it ask and whoever
called can answer.

Above: `mcp.py`, `mcp_reads.py`. Below: `core/questions.py`.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from deputize.core.definition import ToolContext, UpstreamTool
from deputize.core.errors import CallerCannotAnswer, QuestionRefused, ServerAsksBack
from deputize.core.mcp import DEADLINE_MS, IDEMPOTENCY_KEY, TRACEPARENT
from deputize.core.questions import Ability, Asks, Family, ability_of, capabilities_of

Send = Callable[..., Coroutine[Any, Any, dict[str, Any]]]


async def told_or_asked(
    tool: UpstreamTool, context: ToolContext, allowed: tuple[Family, ...], seconds: float, send: Send
) -> dict[str, Any] | Asks:
    """What the server answers, as it came, or what it asks first. `send` is the one request, and is told how."""
    abilities = _answerable(context, allowed)
    try:
        result = await send(
            meta=_meta_of(context, seconds),
            credential=context.credential,
            seconds=seconds,
            tell=context.tell,
            abilities=abilities,
            round=context.round,
        )
    except CallerCannotAnswer as missing:
        _require_each_allowed(tool, missing, allowed)
        raise
    return _asked_back(tool, result, allowed, abilities) if result.get("resultType") == "input_required" else result


def _meta_of(context: ToolContext, seconds: float) -> dict[str, Any]:
    """What every request tells its server beside what it asks for."""
    meta: dict[str, Any] = {IDEMPOTENCY_KEY: context.key, DEADLINE_MS: int(seconds * 1000)}
    if context.traceparent is not None:
        meta[TRACEPARENT] = context.traceparent
    return meta


def _asked_back(
    tool: UpstreamTool, result: dict[str, Any], allowed: tuple[Family, ...], abilities: frozenset[Ability]
) -> Asks:
    """What the server asks first, all of it allowed and answerable. Whether it is well asked, who verifies tells."""
    questions, state = result.get("inputRequests"), result.get("requestState")
    if (
        not isinstance(questions, dict)
        or not questions
        or not all(isinstance(each, dict) for each in questions.values())
    ):
        raise QuestionRefused(f"the server {tool.server} wants to be asked again and asks nothing itself")
    if state is not None and not isinstance(state, str):
        raise QuestionRefused(f"the server {tool.server} asks back with a state that is no text")
    for question in questions.values():
        ability = ability_of(question)
        if ability is None:
            raise QuestionRefused(f"the server {tool.server} asks back what the protocol does not know")
        _require_allowed(tool, ability.family, allowed)
        if ability not in abilities:
            needed = {"server": tool.server, "requiredCapabilities": capabilities_of([ability])}
            raise CallerCannotAnswer(
                f"the server {tool.server} asks back ({ability.value}), and this caller cannot answer that",
                details=needed,
            )
    return Asks(server=tool.server, questions=questions, state=state)


def _answerable(context: ToolContext, allowed: tuple[Family, ...]) -> frozenset[Ability]:
    """What of all that whoever called can answer the operator lets this server ask."""
    return frozenset(each for each in context.can_answer if each.family in allowed)


def _require_each_allowed(tool: UpstreamTool, missing: CallerCannotAnswer, allowed: tuple[Family, ...]) -> None:
    """A server that needs what it may not ask is told of as that, whatever its caller can."""
    for family in missing.details["requiredCapabilities"]:
        _require_allowed(tool, family, allowed, nothing_happened=missing.nothing_happened)


def _require_allowed(
    tool: UpstreamTool, family: Family, allowed: tuple[Family, ...], *, nothing_happened: bool = False
) -> None:
    if family not in allowed:
        raise ServerAsksBack(
            f"the server {tool.server} asks back ({family}), which the settings do not let it",
            details={"server": tool.server, "setting": f"servers.{tool.server}.asks", "needed": family},
            nothing_happened=nothing_happened,
        )
