"""Check that every argument of a command tool has a place, and that its tier covers what its program is given."""

from collections.abc import Iterator
from typing import Final

from deputize.catalog.schema_rules import Reason
from deputize.catalog.schemas import get_properties, resolve_refs
from deputize.core.contract.command import Command, split_argument
from deputize.core.contract.contract import Contract, Effects

_SCALARS: Final = frozenset({"string", "integer", "number", "boolean"})
_REGISTERED: Final = "version_registered"
_SCHEMAS: Final = "schemas_valid"
_POLICY: Final = "auth_policy_defined"


def check_command(contract: Contract) -> Iterator[Reason]:
    """Check the command of a contract, and that only one that runs a command has one."""
    command, is_command = contract.handler.command, contract.handler.driver == "command"
    if is_command != (command is not None):
        reason = "is missing" if is_command else "is set, but the tool runs no command"
        fix = "import its manifest: deputize import FILE" if is_command else "remove it"
        yield Reason(conjunct=_REGISTERED, path="/handler/command", reason=reason, fix=fix)
    if command is not None:
        yield from _check_arguments(contract, command)
        yield from _check_permissions(contract, command)


def _find_tier(contract: Contract) -> int:
    """Find the lowest tier that covers what the program of a command is given."""
    command = contract.handler.command
    assert command is not None
    if command.changes_folders:
        return 3
    if contract.network.allowed_domains:
        return 2
    return 1 if command.folders else 0


def _check_arguments(contract: Contract, command: Command) -> Iterator[Reason]:
    """Check that placeholders are arguments with one value, and that no argument of the tool is without effect."""
    properties = get_properties(contract.input_schema)
    placeholders = [split_argument(each)[1] for each in command.arguments]
    names = {each for each in placeholders if each is not None}
    for name in sorted(names - properties.keys()):
        fix = "declare it there; a brace that is meant as such must not enclose a single word"
        reason = f"has {{{name}}}, which is not in input_schema"
        yield Reason(conjunct=_SCHEMAS, path="/handler/command/arguments", reason=reason, fix=fix)
    for name in sorted(names & properties.keys()):
        schema = resolve_refs(contract.input_schema, properties[name])
        if not isinstance(schema, dict) or schema.get("type") not in _SCALARS:
            path, fix = f"/input_schema/properties/{name}/type", f"write one of {', '.join(sorted(_SCALARS))}"
            yield Reason(conjunct=_SCHEMAS, path=path, reason="is not the type of one word of a command", fix=fix)
    if command.stdin is not None and command.stdin not in properties:
        reason, fix = f"is {command.stdin}, which is not in input_schema", "declare it there"
        yield Reason(conjunct=_SCHEMAS, path="/handler/command/stdin", reason=reason, fix=fix)
    for name in sorted(properties.keys() - names - {command.stdin}):
        fix = f"add {{{name}}} to the command, name it in stdin, or remove it"
        yield Reason(conjunct=_SCHEMAS, path=f"/input_schema/properties/{name}", reason="goes nowhere", fix=fix)


def _check_permissions(contract: Contract, command: Command) -> Iterator[Reason]:
    sandbox, tier = contract.sandbox, _find_tier(contract)
    if sandbox is None or sandbox.tier < tier:
        given = "no sandbox" if sandbox is None else f"tier {sandbox.tier}"
        reason = f"is {given}, but its folders and hosts need tier {tier}"
        yield Reason(conjunct=_POLICY, path="/sandbox/tier", reason=reason, fix=f"write sandbox: {{tier: {tier}}}")
    elif sandbox.tier == 3 and not contract.requires_user_interaction:
        fix = "set it: a person approves each call of tier 3"
        yield Reason(conjunct=_POLICY, path="/requires_user_interaction", reason="is not set", fix=fix)
    if sandbox is not None and sandbox.permissions:
        reason, fix = "are set, but those of a command are its folders and hosts", "remove them"
        yield Reason(conjunct=_POLICY, path="/sandbox/permissions", reason=reason, fix=fix)
    if sandbox is not None and sandbox.backend == "gvisor" and contract.network.allowed_domains:
        reason, fix = "is gvisor, on which programs reach no hosts", "remove the hosts, or write namespaces"
        yield Reason(conjunct=_POLICY, path="/sandbox/backend", reason=reason, fix=fix)
    if command.changes_folders and contract.effects is Effects.READ:
        reason, fix = "is read, but the program may change a folder", "write effects: write, or destructive"
        yield Reason(conjunct="mutation_class_labelled", path="/effects", reason=reason, fix=fix)
    for each in contract.network.allowed_domains:
        if "*" in each:
            fix = "name each host"
            yield Reason(conjunct=_POLICY, path="/network/allowed_domains", reason=f"has {each[:80]}", fix=fix)
