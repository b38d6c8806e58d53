"""Compare a contract with what its function declares: it may be stricter, and never weaker.

Policies, approvals, limits and retries trust the contract and never see the function. A second contract for the same
function, under another name or version, must therefore not say less than the function's own declaration does.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deputize.core.contract.contract import Contract, Effects, PreviewRules, Schema, UpstreamIdempotency

_EFFECTS_ORDER = (Effects.READ, Effects.WRITE, Effects.DESTRUCTIVE)
# Keywords that only explain a value.
_NOTES = frozenset({"title", "description", "examples", "$comment", "deprecated"})
_SENSITIVITY = "x-sensitivity"
_UPPER_BOUNDS = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_LOWER_BOUNDS = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Weakening:
    """One field in which a contract is weaker than its function: what it says, and what the function declares."""

    path: str
    contract_value: str
    function_value: str


def list_weakenings(contract: Contract, declaration: Contract) -> list[Weakening]:
    """List every field in which the contract is weaker than the function's declaration."""
    return [
        *_compare_effects(contract, declaration),
        *_compare_lists(contract, declaration),
        *_compare_previews(contract, declaration),
        *_compare_promises(contract, declaration),
        *_compare_repeats(contract, declaration),
        *_compare_service_limits(contract, declaration),
        *_compare_inputs(contract.input_schema, declaration.input_schema),
        *_compare_sensitivities(contract.output_schema, declaration.output_schema),
    ]


def _compare_effects(contract: Contract, declaration: Contract) -> Iterator[Weakening]:
    if _EFFECTS_ORDER.index(contract.effects) < _EFFECTS_ORDER.index(declaration.effects):
        yield Weakening(path="/effects", contract_value=contract.effects, function_value=declaration.effects)
    # A tool that says it cannot be undone is treated as irreversible, which is stricter.
    is_other_undo = contract.undo != declaration.undo and (
        contract.undo is not None or contract.effects is Effects.WRITE
    )
    if is_other_undo and declaration.effects is not Effects.READ:
        yield Weakening(path="/undo", contract_value=contract.undo or "none", function_value=declaration.undo or "none")


def _compare_lists(contract: Contract, declaration: Contract) -> Iterator[Weakening]:
    """Compare what policies and limits match: everything that the function declares must still be there."""
    pairs: tuple[tuple[str, tuple[Any, ...], tuple[Any, ...]], ...] = (
        ("/auth/scopes", contract.auth.scopes, declaration.auth.scopes),
        ("/auth/permissions", contract.auth.permissions, declaration.auth.permissions),
        ("/resources", contract.resources, declaration.resources),
        ("/predicates", contract.predicates, declaration.predicates),
        ("/tags", contract.tags, declaration.tags),
    )
    for path, items, floor_items in pairs:
        if any(each not in items for each in floor_items):
            yield Weakening(path=path, contract_value=_format_items(items), function_value=_format_items(floor_items))
    if declaration.external_service not in (None, contract.external_service):
        contract_value = contract.external_service or "none"
        yield Weakening(
            path="/external_service", contract_value=contract_value, function_value=str(declaration.external_service)
        )
    cost, declared_cost = contract.observability.cost_per_call, declaration.observability.cost_per_call
    if cost < declared_cost:
        yield Weakening(
            path="/observability/cost_per_call", contract_value=f"{cost:g}", function_value=f"{declared_cost:g}"
        )
    yield from _compare_prices(contract, declaration)


def _compare_prices(contract: Contract, declaration: Contract) -> Iterator[Weakening]:
    """Compare what budgets count: another currency or a lower price would make calls look cheaper."""
    floor = declaration.observability.prices
    if floor is None:
        return
    prices = contract.observability.prices
    if prices is None or prices.currency != floor.currency:
        contract_value = "none" if prices is None else prices.currency
        yield Weakening(
            path="/observability/prices/currency", contract_value=contract_value, function_value=floor.currency
        )
        return
    for name, floor_price in floor.model_dump(exclude={"currency"}).items():
        price = getattr(prices, name) or 0.0
        if price < floor_price:
            yield Weakening(
                path=f"/observability/prices/{name}", contract_value=f"{price:g}", function_value=f"{floor_price:g}"
            )


def _compare_service_limits(contract: Contract, declaration: Contract) -> Iterator[Weakening]:
    """Compare what the service is spared: a contract may ask less of it than its function declares, and not more."""
    floor = declaration.service_limits
    if floor is None:
        return
    limits = {} if contract.service_limits is None else contract.service_limits.model_dump()
    for name, floor_value in floor.model_dump().items():
        value = limits.get(name)
        # The same number of calls in a shorter time is more.
        if value is None or (value < floor_value if name == "window_seconds" else value > floor_value):
            yield Weakening(
                path=f"/service_limits/{name}",
                contract_value="none" if value is None else f"{value:g}",
                function_value=f"{floor_value:g}",
            )


def _compare_previews(contract: Contract, declaration: Contract) -> Iterator[Weakening]:
    if not declaration.preview:
        return
    if not contract.preview:
        yield Weakening(path="/preview", contract_value="false", function_value="true")
        return
    rules, floor_rules = contract.preview_rules or PreviewRules(), declaration.preview_rules or PreviewRules()
    if rules.fresh_seconds > floor_rules.fresh_seconds:
        contract_value = str(rules.fresh_seconds)
        yield Weakening(
            path="/preview_rules/fresh_seconds",
            contract_value=contract_value,
            function_value=str(floor_rules.fresh_seconds),
        )
    if any(each not in floor_rules.volatile for each in rules.volatile):
        contract_value = _format_items(rules.volatile)
        yield Weakening(
            path="/preview_rules/volatile",
            contract_value=contract_value,
            function_value=_format_items(floor_rules.volatile),
        )


def _compare_promises(contract: Contract, declaration: Contract) -> Iterator[Weakening]:
    """Compare what policies trust: a contract may not promise more than the function, nor need a person less."""
    if not set(contract.behaviours) <= set(declaration.behaviours):
        yield Weakening(
            path="/behaviours",
            contract_value=_format_items(contract.behaviours),
            function_value=_format_items(declaration.behaviours),
        )
    if declaration.requires_user_interaction and not contract.requires_user_interaction:
        yield Weakening(path="/requires_user_interaction", contract_value="false", function_value="true")
    if declaration.is_open_world and not contract.is_open_world:
        yield Weakening(path="/open_world", contract_value="false", function_value="true")
    ranks = contract.authority_rank or 0, declaration.authority_rank or 0
    if ranks[0] > ranks[1]:
        yield Weakening(path="/authority_rank", contract_value=str(ranks[0]), function_value=str(ranks[1] or "none"))
    is_shared, may_be_shared = (
        each.freshness is not None and each.freshness.shared_by == "tenant" for each in (contract, declaration)
    )
    if is_shared and not may_be_shared:
        # One caller's result would be given to others.
        yield Weakening(path="/freshness/shared_by", contract_value="tenant", function_value="caller")
    if declaration.recipient_argument not in (None, contract.recipient_argument):
        contract_value = contract.recipient_argument or "none"
        yield Weakening(
            path="/recipient_argument", contract_value=contract_value, function_value=declaration.recipient_argument
        )
    if declaration.labels is not None and contract.labels != declaration.labels:
        yield Weakening(path="/labels", contract_value="other labels", function_value="its own labels")
    if declaration.sandbox is not None and contract.sandbox != declaration.sandbox:
        yield Weakening(
            path="/sandbox", contract_value="another sandbox", function_value=f"tier {declaration.sandbox.tier}"
        )


def _compare_repeats(contract: Contract, declaration: Contract) -> Iterator[Weakening]:
    """Compare what is repeated after a failure, and how a repeated call is recognized."""
    idempotency, floor = contract.idempotency, declaration.idempotency
    is_other_upstream = idempotency.upstream not in (floor.upstream, UpstreamIdempotency.CANNOT)
    # Reading twice does no harm, whatever the contract says about it.
    if is_other_upstream and declaration.effects is not Effects.READ:
        yield Weakening(
            path="/idempotency/upstream", contract_value=idempotency.upstream, function_value=floor.upstream
        )
    if floor.key_argument not in (None, idempotency.key_argument):
        contract_value = idempotency.key_argument or "none"
        yield Weakening(
            path="/idempotency/key_argument", contract_value=contract_value, function_value=str(floor.key_argument)
        )
    if contract.window_seconds < (floor.window_seconds or 0):
        contract_value = str(contract.window_seconds)
        yield Weakening(
            path="/idempotency/window_seconds", contract_value=contract_value, function_value=str(floor.window_seconds)
        )


def _compare_inputs(schema: Schema, declared_schema: Schema) -> Iterator[Weakening]:
    """Compare the arguments: the contract may leave some out, and must keep the marks and bounds of the others."""
    properties, declared_properties = _get_map(schema, "properties"), _get_map(declared_schema, "properties")
    for name, part in properties.items():
        if name in declared_properties:
            yield from _compare_nodes(f"/input_schema/properties/{name}", part, declared_properties[name])
    definitions, declared_definitions = _get_map(schema, "$defs"), _get_map(declared_schema, "$defs")
    for name, part in declared_definitions.items():
        if name in definitions:
            yield from _compare_nodes(f"/input_schema/$defs/{name}", definitions[name], part)


def _compare_sensitivities(schema: Schema, declared_schema: Schema) -> Iterator[Weakening]:
    """Compare the marks of the output: what the function marks as sensitive is redacted under every contract."""
    stack: list[tuple[str, Any, Any]] = [("/output_schema", schema, declared_schema)]
    while stack:
        path, node, floor_node = stack.pop()
        if isinstance(floor_node, list):
            branches = node if isinstance(node, list) else []
            missing = [None] * (len(floor_node) - len(branches))
            pairs = zip([*branches, *missing], floor_node, strict=False)
            stack += [(f"{path}/{place}", *pair) for place, pair in enumerate(pairs)]
        elif isinstance(floor_node, dict):
            parts = node if isinstance(node, dict) else {}
            stack += [(f"{path}/{key}", parts.get(key), each) for key, each in floor_node.items()]
            mark = floor_node.get(_SENSITIVITY)
            if isinstance(mark, str) and parts.get(_SENSITIVITY) != mark:
                yield Weakening(path=path, contract_value=str(parts.get(_SENSITIVITY, "no mark")), function_value=mark)


def _compare_nodes(path: str, node: Any, floor_node: Any) -> Iterator[Weakening]:
    """Compare two schemas of one value. Keywords that only the contract has restrict the value further."""
    if not (isinstance(node, dict) and isinstance(floor_node, dict)):
        if node != floor_node:
            yield Weakening(path=path, contract_value=str(node), function_value=str(floor_node))
        return
    for keyword, bound in floor_node.items():
        if keyword not in _NOTES and not _is_kept(keyword, node.get(keyword), bound):
            yield Weakening(
                path=f"{path}/{keyword}", contract_value=str(node.get(keyword, "none")), function_value=str(bound)
            )


def _is_kept(keyword: str, value: Any, bound: Any) -> bool:
    if keyword in _UPPER_BOUNDS and _is_number(value) and _is_number(bound):
        return bool(value <= bound)
    if keyword in _LOWER_BOUNDS and _is_number(value) and _is_number(bound):
        return bool(value >= bound)
    if keyword == "enum" and isinstance(value, list) and isinstance(bound, list):
        return all(each in bound for each in value)
    return bool(_strip_notes(value) == _strip_notes(bound))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _strip_notes(value: Any) -> Any:
    """Remove what only explains, at every level. A property that has the name of such a keyword is kept."""
    if isinstance(value, list):
        return [_strip_notes(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: {name: _strip_notes(part) for name, part in each.items()}
        if key == "properties" and isinstance(each, dict)
        else _strip_notes(each)
        for key, each in value.items()
        if key not in _NOTES
    }


def _get_map(schema: Schema, keyword: str) -> Mapping[str, Any]:
    value = schema.get(keyword)
    return value if isinstance(value, dict) else {}


def _format_items(items: tuple[Any, ...]) -> str:
    texts = [each if isinstance(each, str) else _format_part(each) for each in items]
    return ", ".join(texts) or "none"


def _format_part(part: Any) -> str:
    """Format a side effect or a predicate in a few words."""
    return str(getattr(part, "name", None) or f"{part.op} {part.resource}/{part.scope}")
