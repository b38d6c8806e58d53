"""What servers ask back before they answer: heard where the operator lets them ask and whoever called can answer.

Above: `mcp.py`, `mcp_reads.py`. Below: `core/questions.py`.
"""

from typing import Any

from deputize.core.definition import ToolContext, UpstreamTool
from deputize.core.errors import CallerCannotAnswer, QuestionRefused, ServerAsksBack
from deputize.core.questions import Ability, Asks, Family, ability_of, capabilities_of


def asked_back(
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


def answerable(context: ToolContext, allowed: tuple[Family, ...]) -> frozenset[Ability]:
    """What of all that whoever called can answer the operator lets this server ask."""
    return frozenset(each for each in context.can_answer if each.family in allowed)


def require_each_allowed(tool: UpstreamTool, missing: CallerCannotAnswer, allowed: tuple[Family, ...]) -> None:
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
