"""Phase two: the tool is known to this caller, its version resolves, and the arguments fit its schema.

The tool's own semantic checks come later, after authorization and before any effect: run here, they would tell
strangers what exists, and refuse to replay a deletion because the thing is gone.
"""

from typing import Any

from deputize.catalog.compiled import CompiledTool
from deputize.core.call import Mutation
from deputize.core.canonical import NotCanonical, canonical
from deputize.core.clock import Deadline
from deputize.core.contract import LifecycleState
from deputize.core.errors import ParseFailed, SchemaViolation
from deputize.govern.decide import visible
from deputize.lifecycle.authority import TenantAuthority
from deputize.lifecycle.phases import Received, Validated
from deputize.prove.metrics import Metrics


def validate(received: Received, authority: TenantAuthority, metrics: Metrics) -> Validated:
    caller, request = received.caller, received.request
    # Before anything is told about any tool: who was revoked does not even learn what there is.
    authority.revocations.check(caller)
    found = authority.tools.resolve(request.tool, request.version, visible=lambda name: visible(caller, name))
    tool = found.tool
    arguments = request.arguments
    try:
        as_sent = canonical(arguments)
    except NotCanonical as error:
        raise ParseFailed(f"the arguments have no canonical form: {error}") from error
    call_input: dict[str, Any] = arguments
    mutations: tuple[Mutation, ...] = ()
    if not tool.is_valid_input(arguments):
        call_input, mutations = _coerced(tool, arguments, metrics)
    return Validated(
        received=received,
        tool=tool,
        deadline=_deadline(received, tool.contract.timeout.effective_seconds),
        canonical=as_sent,
        call_input=call_input,
        mutations=mutations,
        warnings=_warnings(found.state, tool),
    )


def _coerced(
    tool: CompiledTool, arguments: dict[str, Any], metrics: Metrics
) -> tuple[dict[str, Any], tuple[Mutation, ...]]:
    call_input, mutations = tool.coerce(arguments)
    if mutations and tool.is_valid_input(call_input):
        return call_input, mutations
    metrics.misfit(tool.contract, "input")
    errors = tool.input_errors(arguments)
    raise SchemaViolation(
        f"the arguments of {tool.name} do not fit: {_first(errors)}",
        details={"errors": errors, "example": tool.example},
        nothing_happened=True,
    )


def _first(errors: list[dict[str, Any]]) -> str:
    if not errors:
        return "see details"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{errors[0]['path'] or '/'} {errors[0]['message']}{more}"


def _deadline(received: Received, seconds: float) -> Deadline:
    """min(the class's time, what the caller has left)."""
    own = Deadline(at=received.started + seconds)
    return own if received.deadline is None or own.at <= received.deadline.at else received.deadline


def _warnings(state: LifecycleState, tool: CompiledTool) -> tuple[str, ...]:
    if state is not LifecycleState.DEPRECATED:
        return ()
    life = tool.contract.life
    until = f" until {life.sunset_date}" if life.sunset_date else ""
    instead = f"; use {life.replacement} instead" if life.replacement else ""
    return (f"{tool.name} {tool.contract.version} is deprecated{until}{instead}",)
