"""List what a new document changes in an operation of a service, and what of it weakens the reviewed contract."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from deputize.catalog.compatibility.breaks import BreakView
from deputize.catalog.compatibility.contract_changes import compare_contracts
from deputize.catalog.compatibility.schema_changes import find_breaks
from deputize.catalog.schemas import format_pointer
from deputize.core.contract.command import Command
from deputize.core.contract.contract import Contract
from deputize.core.contract.http_request import HttpParameter, HttpRequest
from deputize.core.contract.safety_floor import list_weakenings

_INPUT: Final = "/input_schema"
# Shown as what they were and are, or by the fields that they follow from.
_OWN_PATHS: Final = frozenset({"/title", "/description", "/handler", "/native_ids", "/external_mappings", "/examples"})
# Parameters are compared one by one; `messages` of gRPC methods, as the schemas that follow from them.
_REQUEST_FIELDS: Final = tuple(each for each in HttpRequest.model_fields if each not in ("parameters", "messages"))
_MOST_CHANGES: Final = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationChange:
    """One change of an operation: the JSON pointer in its contract, what happened, and whether it protects less."""

    path: str
    reason: str
    is_weaker: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "reason": self.reason, "weaker": self.is_weaker}


def list_operation_changes(old: Contract, new: Contract) -> tuple[OperationChange, ...]:
    """List the changes of an operation, those that weaken its contract first."""
    weaker_changes = [
        OperationChange(path=path, reason=reason, is_weaker=True)
        for path, reason in dict.fromkeys((*_list_request_changes(old, new), *_list_weaker_fields(old, new)))
    ]
    weaker_paths = [each.path for each in weaker_changes]
    changes = [
        OperationChange(path=each.path, reason=each.reason)
        for each in compare_contracts(old, new)
        if each.path not in _OWN_PATHS and not any(f"{path}/".startswith(f"{each.path}/") for path in weaker_paths)
    ]
    changes += [
        OperationChange(path=f"/{field}", reason=f"is “{getattr(new, field)}” now, and was “{getattr(old, field)}”")
        for field in ("title", "description")
        if getattr(old, field) != getattr(new, field)
    ]
    return (*weaker_changes, *changes)[:_MOST_CHANGES] or (OperationChange(path="/handler", reason="is different"),)


def _list_request_changes(old: Contract, new: Contract) -> Iterator[tuple[str, str]]:
    """List where else the request, its arguments and its secrets go, and what else is read of the response: the same
    tool does something that was not reviewed.
    """
    for field in _REQUEST_FIELDS:
        before, after = (getattr(each.handler.request, field, None) for each in (old, new))
        if before != after:
            yield f"/handler/request/{field}", f"is {_format(after)} now, and was {_format(before)}"
    for field in Command.model_fields:
        before, after = (getattr(each.handler.command, field, None) for each in (old, new))
        if before != after:
            yield f"/handler/command/{field}", f"is {_format(after)} now, and was {_format(before)}"
    # An argument that is new or gone is a change of the input.
    old_parameters = {each.argument: each for each in _get_parameters(old)}
    for new_parameter in _get_parameters(new):
        old_parameter = old_parameters.get(new_parameter.argument, new_parameter)
        if new_parameter != old_parameter:
            yield (
                f"/handler/request/parameters/{new_parameter.argument}",
                f"goes to {_format(new_parameter)} now, and went to {_format(old_parameter)}",
            )


def _get_parameters(contract: Contract) -> tuple[HttpParameter, ...]:
    request = contract.handler.request
    return () if request is None else request.parameters


def _list_weaker_fields(old: Contract, new: Contract) -> Iterator[tuple[str, str]]:
    for each in find_breaks(new.input_schema, old.input_schema):
        yield _INPUT + format_pointer(each.path), each.explain(BreakView.ACCEPTS_MORE)
    for each in find_breaks(new.output_schema, old.output_schema):
        yield "/output_schema" + format_pointer(each.path), each.explain(BreakView.RETURNS_MORE)
    for weakening in list_weakenings(new, old):
        if not weakening.path.startswith(_INPUT):
            yield weakening.path, f"is {weakening.contract_value} now, and was {weakening.function_value}"


def _format(value: Any) -> str:
    if isinstance(value, HttpParameter):
        return f"{value.place} {value.name} ({value.style}{', exploded' if value.explode else ''})"
    if isinstance(value, tuple):
        return ", ".join(_format(each) for each in value)
    if value is None:
        return "none"
    if isinstance(value, dict | int):
        return str(value)
    return value if isinstance(value, str) else " ".join(str(each) for _, each in value if each is not None)
