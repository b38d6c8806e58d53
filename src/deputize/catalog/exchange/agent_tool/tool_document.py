"""Write a contract as a document of the standard's objects, and read such a document as a contract.

A document has one object of each kind that describes a tool, by kind. Reading one that was written here gives the same
contract, with the same digest. A foreign document may consist of a declaration alone, and may say less, more or
otherwise: what a contract can hold is read, the cautious default is assumed for what is missing, and the rest is kept
and written again. A statement that the gateway cannot enforce as it is written makes the document invalid.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from deputize.catalog.exchange.agent_tool import contract_mapping as mappings
from deputize.catalog.exchange.agent_tool.external_mappings import (
    FOREIGN_KEY,
    export_external_mappings,
    restore_external_mappings,
)
from deputize.catalog.exchange.agent_tool.field_mapping import ObjectMapping, Record
from deputize.catalog.exchange.agent_tool.foreign_contract import complete_foreign_fields
from deputize.catalog.exchange.agent_tool.foreign_fields import (
    ForeignField,
    apply_differences,
    find_differences,
    is_replacement,
    parse_differences,
)
from deputize.catalog.exchange.agent_tool.object_kinds import SCHEMA_VERSION, ObjectKind, find_object_problems
from deputize.catalog.importers.declaration import explain_validation_error
from deputize.catalog.registration_rules import build_refusal
from deputize.catalog.schema_rules import Reason
from deputize.catalog.schemas import format_pointer, strip_internal
from deputize.core.contract.contract import Contract, LifecycleState

_DECLARATION: Final = str(ObjectKind.TOOL_DECLARATION)
_HOOKS: Final = str(ObjectKind.TOOL_HOOK)
# The objects of a document, and the parts of its declaration that are objects of their own.
_OBJECT_MAPPINGS: Final[tuple[ObjectMapping, ...]] = (
    mappings.DECLARATION,
    mappings.NAMESPACE,
    mappings.INTERFACE,
    mappings.EXECUTION_PROFILE,
    mappings.PERMISSION_PROFILE,
    mappings.SCHEDULER_POLICY,
    mappings.RESULT_PERSISTENCE,
)
_PARTS: Final[Mapping[str, ObjectMapping]] = {
    "input_contract": mappings.INPUT_CONTRACT,
    "output_contract": mappings.OUTPUT_CONTRACT,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolDocument:
    """A document as it was read. State and hooks belong to the gateway that wrote it, not to the contract."""

    contract: Contract
    lifecycle: LifecycleState
    hooks: tuple[Record, ...] = ()


def is_tool_document(value: Any) -> bool:
    """Tell whether a manifest is a document of the standard: a declaration, or objects by kind."""
    return isinstance(value, dict) and (_DECLARATION in value or {"tool_id", "schema_version"} <= value.keys())


def export_tool_document(
    contract: Contract, lifecycle: LifecycleState, *, is_whole: bool = True, hooks: Iterable[Record] = ()
) -> Record:
    """Write the objects of a tool; if not whole, then without internal arguments and without where it runs."""
    record: Record = {**contract.model_dump(mode="json"), "lifecycle": lifecycle.value}
    if not is_whole:
        record = {**record, "input_schema": strip_internal(record["input_schema"])}
        del record["handler"]
    document = _export_objects(record)
    apply_differences(document, _load_differences(contract))
    hooks = list(hooks)
    return {**document, **({_HOOKS: hooks} if hooks else {})}


def import_tool_document(value: Record) -> ToolDocument:
    """Read a document, or raise `ToolNotAdmitted` with every reason why it cannot be."""
    foreign: Record = value if _DECLARATION in value else {"schema_version": SCHEMA_VERSION, _DECLARATION: value}
    _require_valid(foreign)
    hooks = tuple(foreign.get(_HOOKS, ()))
    foreign = {name: each for name, each in foreign.items() if name != _HOOKS}
    record = _restore_record(foreign)
    lifecycle = LifecycleState(record.pop("lifecycle"))
    contract = _build_contract(record)
    own = _export_objects({**contract.model_dump(mode="json"), "lifecycle": lifecycle.value})
    differences = find_differences({name: each for name, each in own.items() if name in foreign}, foreign)
    _require_no_contradiction(contract, differences)
    if differences:
        foreign_fields = {FOREIGN_KEY: [each.to_json() for each in differences]}
        contract = contract.model_copy(update={"external_mappings": {**contract.external_mappings, **foreign_fields}})
    return ToolDocument(contract=contract, lifecycle=lifecycle, hooks=hooks)


def _export_objects(record: Record) -> Record:
    document: Record = {"schema_version": SCHEMA_VERSION}
    for object_mapping in _OBJECT_MAPPINGS:
        document[str(object_mapping.kind)] = object_mapping.export_object(record)
    declaration = document[_DECLARATION]
    declaration.update({name: object_mapping.export_object(record) for name, object_mapping in _PARTS.items()})
    external_mappings = export_external_mappings(record)
    if external_mappings:
        declaration["external_mappings"] = external_mappings
    return document


def _load_differences(contract: Contract) -> list[ForeignField]:
    differences = parse_differences(contract.external_mappings.get(FOREIGN_KEY))
    return [each for each in differences if not is_replacement(each, mappings.GOVERNED_PATHS)]


def _require_valid(document: Record) -> None:
    problems: list[Reason] = []
    for object_mapping in _OBJECT_MAPPINGS:
        if str(object_mapping.kind) in document:
            problems += find_object_problems(object_mapping.kind, document[str(object_mapping.kind)])
    hooks = document.get(_HOOKS, [])
    for each in hooks if isinstance(hooks, list) else [hooks]:
        problems += find_object_problems(ObjectKind.TOOL_HOOK, each)
    problems += find_document_problems(document)
    if problems:
        raise build_refusal("this document", SCHEMA_VERSION, problems)


def find_document_problems(document: Record) -> list[Reason]:
    """List what is invalid around the objects of a document: its version, and values that are not JSON."""
    others = {name: each for name, each in document.items() if name not in {str(kind) for kind in ObjectKind}}
    problems = find_object_problems(ObjectKind.TOOL_EXTERNAL_MAPPING, {"declared": others})
    if document.get("schema_version") != SCHEMA_VERSION:
        reason, fix = "is not a version that is understood", f"write {SCHEMA_VERSION}"
        problems.append(Reason(conjunct="declaration", path="/schema_version", reason=reason, fix=fix))
    return problems


def _restore_record(document: Record) -> Record:
    declaration: Record = document[_DECLARATION]
    record = restore_external_mappings(declaration.get("external_mappings"))
    for object_mapping in mappings.HOME_MAPPINGS:
        part = next((name for name, each in _PARTS.items() if each is object_mapping), None)
        source = document.get(str(object_mapping.kind)) if part is None else declaration.get(part)
        if isinstance(source, dict):
            record |= object_mapping.restore_record(source)
    return complete_foreign_fields(record, document)


def _build_contract(record: Record) -> Contract:
    try:
        return Contract.model_validate(record)
    except ValidationError as error:
        reasons = [
            Reason(conjunct=each.conjunct, path=_locate_field(each.path), reason=each.reason, fix=each.fix)
            for each in explain_validation_error(error)
        ]
        raise build_refusal(f"{record['namespace']}.{record['name']}", record["version"], reasons) from error


def _locate_field(path: str) -> str:
    """Translate the path of a contract's field into the path of the document's field."""
    name, slash, rest = path.removeprefix("/").partition("/")
    for object_mapping in mappings.HOME_MAPPINGS:
        part = next(
            (f"/{_DECLARATION}/{part}" for part, each in _PARTS.items() if each is object_mapping),
            f"/{object_mapping.kind}",
        )
        for each in object_mapping.fields:
            if each.ours == name:
                return f"{part}/{each.theirs}{slash}{rest}"
    return path


def _require_no_contradiction(contract: Contract, differences: Iterable[ForeignField]) -> None:
    reasons = [
        Reason(
            conjunct="declaration",
            path=format_pointer(each.path),
            reason="says something else than the rest of the document, or than this gateway enforces",
            fix="make the objects agree, or leave it out",
        )
        for each in differences
        if is_replacement(each, mappings.GOVERNED_PATHS)
    ]
    if reasons:
        raise build_refusal(contract.full_name, contract.version, reasons)
