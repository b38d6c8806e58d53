"""Check a flow: its form, the type of every value that goes from one step to another, its depth and its deadline.

Each reason names the step and the field. What a tool does not declare of its result cannot be checked here; the step
that gets it is validated when it is called, like every call.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from deputize.catalog.compatibility.breaks import BreakKind, SchemaBreak
from deputize.catalog.compatibility.negotiation import format_data_pointer
from deputize.catalog.compatibility.schema_changes import find_breaks
from deputize.catalog.schema_rules import NOT_CALLABLE, Reason
from deputize.catalog.schemas import get_properties, resolve_refs
from deputize.core.comparisons import InvalidComparison, parse_comparison
from deputize.core.contract.compensation_binding import get_compensation_class
from deputize.core.contract.contract import Contract, Effects, Schema, TimeoutClass, is_safe_to_repeat
from deputize.core.contract.flow import (
    MAX_FLOW_CALLS,
    MAX_FLOW_DEPTH,
    MAX_FLOW_STEPS,
    PROGRAM_TOOL,
    FlowCall,
    FlowStep,
    count_calls,
    measure_steps,
)
from deputize.core.contract.handler import FLOW_DRIVER
from deputize.core.json_pointer import is_place, parse_pointer

ContractLookup = Callable[[str], Contract | None]

_ROOTS: Final = ("input", "steps", "item", "index", "round")
_EFFECTS: Final = (Effects.READ, Effects.WRITE, Effects.DESTRUCTIVE)
_MOST_BREAKS: Final = 2
_ORDER_FIX: Final = (
    "move it to the end, declare its undo or compensation, or use a tool that declares requires_user_interaction"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Value:
    """What is known of a value: the schemas that it may have, each with its document; none if nothing is declared."""

    schemas: tuple[tuple[Schema, Any], ...] = ()
    is_certain: bool = True

    def make_uncertain(self) -> "_Value":
        return _Value(schemas=self.schemas, is_certain=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scope:
    """The values that a step can use: the flow's input, results of earlier steps, and those of `map` and `loop`."""

    roots: Mapping[str, _Value]
    steps: dict[str, _Value] = field(default_factory=dict)

    def copy(self, **roots: _Value) -> "_Scope":
        return _Scope(roots={**self.roots, **roots}, steps=dict(self.steps))


def check_flow(contract: Contract) -> Iterator[Reason]:
    """Check what a flow declares, without the tools that it names."""
    is_flow = contract.handler.driver == FLOW_DRIVER
    if is_flow != (contract.flow is not None):
        reason = "is missing, but the driver is flow" if is_flow else f"is set, but the driver is not {FLOW_DRIVER}"
        yield _make_reason("/flow", reason, "list its steps" if is_flow else "remove handler, or write driver: flow")
    if not is_flow or contract.flow is None:
        return
    if contract.timeout.timeout_class is not TimeoutClass.ASYNC:
        reason = f"is {contract.timeout.timeout_class}, but a flow outlives its request"
        yield _make_reason("/timeout/timeout_class", reason, "write timeout: {timeout_class: async, seconds: 3600}")
    if not is_safe_to_repeat(contract):
        reason = "says that a repeated call is not recognized, but a flow continues where it was"
        yield _make_reason("/idempotency/upstream", reason, "write idempotency: deduplicates")
    steps = list(contract.flow.walk())
    if contract.flow.session is not None and contract.flow.program is None:
        yield _make_reason("/flow/session", "is set, but only programs have sessions", "remove it")
    if contract.flow.program is not None and contract.full_name != PROGRAM_TOOL:
        yield _make_reason("/flow/program", f"is set, but only {PROGRAM_TOOL} runs programs", "list steps instead")
    if bool(steps) == (contract.flow.program is not None):
        yield _make_reason("/flow/steps", "is empty" if not steps else "is set, and program too", "list its steps")
    if len(steps) > MAX_FLOW_STEPS:
        reason, fix = f"has {len(steps)} steps; the limit is {MAX_FLOW_STEPS}", "move some of them into a flow"
        yield _make_reason("/flow/steps", reason, f"{fix} of their own, and call that")
    if (calls := count_calls(contract.flow)) > MAX_FLOW_CALLS:
        reason, fix = f"may make {calls} calls; the limit is {MAX_FLOW_CALLS}", "lower max_items or max_rounds, or move"
        yield _make_reason("/flow/steps", reason, f"{fix} some of them into a flow of their own, and call that")
    names = [each.name for each in steps]
    for name in sorted({each for each in names if names.count(each) > 1}):
        yield _make_reason("/flow/steps", f"has two steps with the name {name}", "rename one of them")
    for step in steps:
        yield from _check_form(step)
    if (depth := _measure_nesting(contract.flow.steps)) > MAX_FLOW_DEPTH:
        reason = f"has steps inside steps, {depth} levels deep; the limit is {MAX_FLOW_DEPTH}"
        yield _make_reason("/flow/steps", reason, "move the inner ones into a flow of their own, and call that")


def _measure_nesting(steps: Sequence[FlowStep]) -> int:
    return 1 + max((_measure_nesting(each.children) for each in steps), default=-1)


def _check_form(step: FlowStep) -> Iterator[Reason]:
    kinds = [name for name in ("tool", "parallel", "steps") if getattr(step, name) is not None]
    if len(kinds) != 1:
        reason = "has neither tool nor parallel nor steps" if not kinds else f"has {' and '.join(kinds)}"
        yield _make_step_reason(step, "", reason, "write one of them")
    if step.otherwise is not None and step.when is None:
        reason = "is set, but the step has no condition"
        yield _make_step_reason(step, "otherwise", reason, "write when, or remove it")
    for name in ("version", "bind", "constants", "map", "loop", "fallback"):
        if getattr(step, name) is not None and step.tool is None:
            yield _make_step_reason(step, name, "is set, but the step calls no tool", "move it to the step that does")
    if step.map is not None and step.loop is not None:
        fix = "move one of them into a flow of its own, and call that"
        yield _make_step_reason(step, "loop", "is set, and map too", fix)
    if step.join is not None and step.parallel is None:
        yield _make_step_reason(step, "join", "is set, but no steps are parallel", "remove it")
    if (step.join == "quorum") != (step.quorum is not None):
        fix = "write join: quorum and quorum: 0.5, for the half of the steps, or neither"
        yield _make_step_reason(step, "quorum", "and join do not belong together", fix)
    for name, text in (("when", step.when), ("loop/until", None if step.loop is None else step.loop.until)):
        if text is not None:
            try:
                parse_comparison(text, _ROOTS)
            except InvalidComparison as error:
                fix = "write it as in /steps/order/total <= 100"
                yield _make_step_reason(step, name, str(error), fix)


def check_flow_tools(contract: Contract, find_contract: ContractLookup) -> Iterator[Reason]:
    """Check a flow against the tools that it names, if its form is right."""
    if contract.flow is None or contract.flow.program is not None or any(check_flow(contract)):
        return
    tools: dict[str, Contract] = {}
    is_complete = True
    for step in contract.flow.walk():
        for call in step.calls:
            # Under the first step that names it.
            if call.tool not in tools and (tool := find_contract(call.tool)) is not None:
                tools[call.tool] = tool
            elif call.tool not in tools:
                is_complete = False
                fix = "register it first, or load it with this flow"
                yield _make_step_reason(step, "tool", f"{call.tool} {NOT_CALLABLE}", fix)
    if not is_complete:
        return
    if (chain := _find_deepest(contract, find_contract, (contract.full_name,)))[-1] in chain[:-1]:
        yield _make_reason("/flow/steps", f"call the flow itself: {' → '.join(chain)}", "remove that step, or use loop")
        return
    if len(chain) > MAX_FLOW_DEPTH:
        reason = f"are flows inside flows, {len(chain)} levels deep; the limit is {MAX_FLOW_DEPTH}"
        yield _make_reason("/flow/steps", reason, "call the inner flows from this one instead")
        return
    if (calls := _count_all_calls(contract, find_contract, {})) > MAX_FLOW_CALLS:
        reason = f"may make {calls} calls with those of the flows inside it; the limit is {MAX_FLOW_CALLS}"
        yield _make_reason("/flow/steps", reason, "lower max_items or max_rounds, here or in these flows")
    yield from _check_effects(contract, tools)
    final_tools = {name for name, tool in tools.items() if _is_irreversible(tool, find_contract)}
    yield from _check_order(contract.flow.steps, tools, final_tools, None)
    seconds = measure_steps(contract.flow.steps, lambda name: tools[name].timeout.effective_seconds)
    if seconds > contract.timeout.effective_seconds:
        reason = f"is {contract.timeout.effective_seconds:g} s, but its steps may take {seconds:g} s"
        yield _make_reason("/timeout/seconds", reason, f"write {seconds:g} or more, or use tools with shorter timeouts")
    scope = _Scope(roots={"input": _Value(schemas=((contract.input_schema, contract.input_schema),))})
    checker = _JunctionChecker(tools)
    yield from checker.check_steps(contract.flow.steps, scope)
    yield from checker.check_output(contract, scope)


def _find_deepest(contract: Contract, find_contract: ContractLookup, chain: tuple[str, ...]) -> tuple[str, ...]:
    """Find the longest chain of flows that call flows; its last name occurs twice if the chain is a cycle."""
    longest = chain
    names = {call.tool for step in contract.flow.walk() for call in step.calls} if contract.flow is not None else ()
    for name in sorted(names):
        tool = contract if name == chain[0] and len(chain) == 1 else find_contract(name)
        if name in chain:
            return (*chain, name)
        if tool is not None and tool.flow is not None and len(chain) <= MAX_FLOW_DEPTH:
            found = _find_deepest(tool, find_contract, (*chain, name))
            if found[-1] in found[:-1]:
                return found
            longest = max(longest, found, key=len)
    return longest


def _count_all_calls(contract: Contract, find_contract: ContractLookup, counts: dict[str, int]) -> int:
    """Count the calls that a flow makes at most, with those of the flows inside it; none of them is a cycle."""

    def count_inner(name: str) -> int:
        if name not in counts:
            tool = find_contract(name)
            counts[name] = 0 if tool is None else _count_all_calls(tool, find_contract, counts)
        return counts[name]

    return 0 if contract.flow is None else count_calls(contract.flow, count_inner)


def _check_effects(contract: Contract, tools: Mapping[str, Contract]) -> Iterator[Reason]:
    tool = max(tools.values(), key=lambda each: _EFFECTS.index(each.effects))
    if _EFFECTS.index(contract.effects) < _EFFECTS.index(tool.effects):
        reason = f"is {contract.effects}, but the flow calls {tool.full_name}, which is {tool.effects}"
        yield _make_reason("/effects", reason, f"write effects: {tool.effects}")


def _is_irreversible(tool: Contract, find_contract: ContractLookup) -> bool:
    """Tell whether a call cannot be taken back, and no person decides about it; a flow is like the worst of its steps.

    As the journal sees it: a write that declares neither undo nor compensation cannot be taken back.
    """
    if tool.effects is Effects.READ or tool.requires_user_interaction:
        return False
    if tool.flow is None:
        return get_compensation_class(tool) == "irreversible"
    if tool.flow.program is not None:
        return True
    inner_tools = (find_contract(call.tool) for step in tool.flow.walk() for call in step.calls)
    return any(_is_irreversible(each, find_contract) for each in inner_tools if each is not None)


def _check_order(
    steps: Sequence[FlowStep], tools: Mapping[str, Contract], final_tools: Collection[str], later: str | None
) -> Iterator[Reason]:
    """Check that nothing is changed after a step that cannot be taken back, unless a person decides about that step.

    `later` is the name of a step after these that changes something.
    """
    for place, step in enumerate(steps):
        next_change = next((each.name for each in steps[place + 1 :] if _changes_data(each, tools)), later)
        parallel = step.parallel or ()
        for branch in parallel:
            sibling = next((each.name for each in parallel if each is not branch and _changes_data(each, tools)), None)
            yield from _check_order((branch,), tools, final_tools, sibling or next_change)
        yield from _check_order(step.steps or (), tools, final_tools, next_change)
        yield from _check_order(step.otherwise or (), tools, final_tools, next_change)
        if step.map is not None or step.loop is not None:
            next_change = next_change or f"{step.name}, which is repeated,"
        for name in (call.tool for call in step.calls if call.tool in final_tools):
            if next_change is not None:
                reason = f"is {name}, which cannot be taken back, but {next_change} changes data after it"
                yield _make_step_reason(step, "tool", reason, _ORDER_FIX)


def _changes_data(step: FlowStep, tools: Mapping[str, Contract]) -> bool:
    return any(tools[call.tool].effects is not Effects.READ for each in step.walk() for call in each.calls)


class _JunctionChecker:
    """Checks that each argument gets a value that its schema allows."""

    def __init__(self, tools: Mapping[str, Contract]) -> None:
        self._tools = tools

    def check_steps(self, steps: Iterable[FlowStep], scope: _Scope) -> Iterator[Reason]:
        """Check steps that run one after another, and add their results to the scope."""
        for step in steps:
            yield from self._check_step(step, scope)

    def _check_step(self, step: FlowStep, scope: _Scope) -> Iterator[Reason]:
        if step.when is not None:
            yield from self._check_condition(step, "when", step.when, scope)
        inner_scopes: list[_Scope] = []
        for children in (*((each,) for each in step.parallel or ()), step.steps, step.otherwise):
            if children:
                inner_scopes.append(inner := scope.copy())
                yield from self.check_steps(children, inner)
        if step.tool is not None:
            yield from self._check_calls(step, scope)
        # Of steps that may not run, or may be canceled, there may be no result.
        is_certain = step.when is None and step.join in (None, "all")
        for inner in inner_scopes:
            for name, value in inner.steps.items():
                if name not in scope.steps:
                    scope.steps[name] = value if is_certain else value.make_uncertain()
        result = self._describe_result(step)
        scope.steps[step.name] = result if step.when is None else result.make_uncertain()

    def _describe_result(self, step: FlowStep) -> _Value:
        schemas: tuple[tuple[Schema, Any], ...] = tuple(
            (schema, schema) for each in step.calls for schema in (self._tools[each.tool].output_schema,)
        )
        if step.map is not None:
            wrapped = [_close(root, {"type": "array", "items": part}) for root, part in schemas]
            schemas = tuple((each, each) for each in wrapped)
        return _Value(schemas=schemas)

    def _check_calls(self, step: FlowStep, scope: _Scope) -> Iterator[Reason]:
        inner = scope.copy()
        if step.map is not None:
            found = yield from self._find_value(step, "map/over", step.map.over, scope)
            for root, part in () if found is None else found.schemas:
                if breaks := find_breaks(_close(root, part), {"type": "array"}):
                    reason = f"is {step.map.over}, which is not always a list: {_explain_break(breaks[0])}"
                    yield _make_step_reason(step, "map/over", reason, "name a list")
            items = () if found is None else tuple(_list_items(found))
            inner = scope.copy(item=_Value(schemas=items), index=_make_value({"type": "integer", "minimum": 0}))
        if step.loop is not None:
            inner = scope.copy(round=_make_value({"type": "integer", "minimum": 1}))
            inner.steps[step.name] = self._describe_result(step).make_uncertain()
            yield from self._check_condition(step, "loop/until", step.loop.until, inner)
        for place, call in enumerate(step.calls):
            yield from self._check_arguments(step, "" if place == 0 else f"fallback/{place - 1}/", call, inner)

    def _check_arguments(self, step: FlowStep, path: str, call: FlowCall, scope: _Scope) -> Iterator[Reason]:
        tool, bind, constants = self._tools[call.tool], call.bind or {}, call.constants or {}
        schema = tool.input_schema
        arguments = get_properties(schema)
        required_names = resolve_refs(schema, schema).get("required", ())
        for name in sorted(bind.keys() & constants.keys()):
            yield _make_step_reason(step, f"{path}constants/{name}", "is bound too", "remove one of them")
        for name in sorted((bind.keys() | constants.keys()) - arguments.keys()):
            reason = f"is not an argument of {call.tool}, which takes {', '.join(sorted(arguments)) or 'none'}"
            yield _make_step_reason(step, f"{path}bind/{name}", reason, "name one of these")
        for name in sorted({str(each) for each in required_names} - bind.keys() - constants.keys()):
            reason = f"is missing: {call.tool} requires {name}"
            yield _make_step_reason(step, f"{path}bind/{name}", reason, f"add it, as in {name}: /input/{name}")
        for name in sorted(arguments.keys() & bind.keys()):
            where = f"{path}bind/{name}"
            value = yield from self._find_value(step, where, bind[name], scope)
            if value is None:
                continue
            if not value.is_certain and name in required_names:
                reason = f"comes from {bind[name]}, which may be missing, but {call.tool} requires {name}"
                yield _make_step_reason(step, where, reason, "make it required there, or move this step beside it")
            yield from _compare_value(step, where, bind[name], value, (schema, arguments[name]))
        for name in sorted(arguments.keys() & constants.keys()):
            where = f"{path}constants/{name}"
            value = _make_value({"const": constants[name]})
            yield from _compare_value(step, where, "this value", value, (schema, arguments[name]))

    def _check_condition(self, step: FlowStep, where: str, text: str, scope: _Scope) -> Iterator[Reason]:
        comparison = parse_comparison(text, _ROOTS)
        for operand in (comparison.left, comparison.right):
            if operand.steps:
                steps = operand.steps[: operand.steps.index("*")] if "*" in operand.steps else operand.steps
                yield from self._require_value(step, where, "/" + "/".join(operand.steps), steps, scope)

    def _require_value(
        self, step: FlowStep | None, where: str, source: str, steps: tuple[str, ...], scope: _Scope
    ) -> Iterator[Reason]:
        found = _resolve(steps, scope)
        if isinstance(found, str):
            yield _make_step_reason(step, where, f"names {source}, {found}", _SOURCE_FIX)

    def _find_value(
        self, step: FlowStep | None, where: str, source: str, scope: _Scope
    ) -> Generator[Reason, None, _Value | None]:
        try:
            found = _resolve(parse_pointer(source), scope)
        except ValueError as error:
            found = str(error)
        if isinstance(found, _Value):
            return found
        yield _make_step_reason(step, where, f"names {source}, {found}", _SOURCE_FIX)
        return None

    def check_output(self, contract: Contract, scope: _Scope) -> Iterator[Reason]:
        """Check that the flow's result is what its contract declares."""
        assert contract.flow is not None
        output, schema = contract.flow.output, contract.output_schema
        if output is None:
            output = f"/steps/{contract.flow.steps[-1].name}"
        if isinstance(output, str):
            value = yield from self._find_value(None, "output", output, scope)
            if value is not None:
                yield from _compare_value(None, "output", output, value, (schema, schema))
            return
        properties = get_properties(schema)
        required_names = resolve_refs(schema, schema).get("required", ())
        for name in sorted({str(each) for each in required_names} - output.keys()):
            reason = f"is missing: output_schema requires {name}"
            yield _make_step_reason(None, f"output/{name}", reason, f"add it, as in {name}: /steps/STEP/{name}")
        for name, source in sorted(output.items()):
            value = yield from self._find_value(None, f"output/{name}", source, scope)
            if value is not None and name in properties:
                if not value.is_certain and name in required_names:
                    reason = f"comes from {source}, which may be missing, but output_schema requires {name}"
                    yield _make_step_reason(None, f"output/{name}", reason, "do not require it there")
                yield from _compare_value(None, f"output/{name}", source, value, (schema, properties[name]))


_SOURCE_FIX: Final = "name a value of /input, or of the result of an earlier step as in /steps/NAME/FIELD"


def _resolve(steps: tuple[str, ...], scope: _Scope) -> _Value | str:
    """Resolve a source to what is known of its value, or to why there is none."""
    root, *rest = steps
    if root == "steps":
        if not rest or rest[0] not in scope.steps:
            name = rest[0] if rest else "no step"
            return f"but {name} is not a step before this one that it can use" if rest else "but that is no value"
        value, rest = scope.steps[rest[0]], rest[1:]
    elif root in scope.roots:
        value = scope.roots[root]
    else:
        return f"but there is no {root} here: it exists inside {'loop' if root == 'round' else 'map'}"
    for place, name in enumerate(rest):
        found = _enter(value, name)
        if found is None:
            return f"but nothing declares {'/'.join(rest[: place + 1])}"
        value = found
    return value


def _enter(value: _Value, name: str) -> _Value | None:
    """Enter a member of a value; None if a schema says that there is none."""
    schemas: list[tuple[Schema, Any]] = []
    is_certain, is_open = value.is_certain, not value.schemas
    for root, part in value.schemas:
        schema = resolve_refs(root, part)
        if not isinstance(schema, dict):
            is_open = True
        elif name in (properties := schema.get("properties") or {}):
            schemas.append((root, properties[name]))
            is_certain = is_certain and name in schema.get("required", ())
        elif is_place(name) and isinstance(schema.get("items"), dict):
            schemas.append((root, schema["items"]))
            is_certain = False
        elif properties or schema.get("additionalProperties") is False:
            return None
        else:
            is_open = True
    # Of a value that one of its schemas says nothing about, nothing is known.
    return _Value(schemas=() if is_open else tuple(schemas), is_certain=value.is_certain if is_open else is_certain)


def _list_items(value: _Value) -> Iterator[tuple[Schema, Any]]:
    for root, part in value.schemas:
        schema = resolve_refs(root, part)
        if isinstance(schema, dict) and isinstance(schema.get("items"), dict):
            yield root, schema["items"]


def _compare_value(
    step: FlowStep | None, where: str, source: str, value: _Value, target: tuple[Schema, Any]
) -> Iterator[Reason]:
    for root, part in value.schemas:
        for each in find_breaks(_close(root, part), _close(*target))[:_MOST_BREAKS]:
            reason = f"comes from {source}, which does not fit: {_explain_break(each)}"
            yield _make_step_reason(step, where, reason, "bind another value, or change one of the two schemas")


def _explain_break(found: SchemaBreak) -> str:
    where = format_data_pointer(found.path) or "it"
    match found.kind:
        case BreakKind.REQUIRED:
            return f"{where} is required, and may be missing"
        case BreakKind.EXTRA:
            return f"{where} is not accepted"
        case BreakKind.UNPROVEN:
            return f"it cannot be shown to fit, because {found.need}"
        case BreakKind.VALUE:
            return f"{where} must be {found.need}, and can be {found.have}"


def _close(root: Schema, part: Any) -> Any:
    """Make a document of its own of a part of a schema, with the definitions that it may refer to."""
    definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
    return {**definitions, **part} if isinstance(part, dict) and part is not root else part


def _make_value(schema: Schema) -> _Value:
    return _Value(schemas=((schema, schema),))


def _make_step_reason(step: FlowStep | None, field_path: str, reason: str, fix: str) -> Reason:
    place = "/flow" if step is None else f"/flow/steps/{step.name}"
    return _make_reason(f"{place}/{field_path}".rstrip("/"), reason, fix)


def _make_reason(path: str, reason: str, fix: str) -> Reason:
    return Reason(conjunct="flow_sound", path=path, reason=reason, fix=fix)
