"""Select what an external decision point may receive: everything but arguments that a contract marks as sensitive.

In doubt an argument is withheld: one sensitive mark anywhere in the schema is enough, and arguments that the schema
does not describe are never sent. Scopes built from a withheld argument are sent as `*`.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from deputize.core.bounded_dict import BoundedDict
from deputize.core.contract.contract import Contract
from deputize.core.decision import PolicyRequest
from deputize.core.sensitive.names import is_sensitive_name

_ARGUMENT = re.compile(r"\{([^{}]+)\}")
_MAX_CACHED_CONTRACTS = 10_000
_disclosable_cache: BoundedDict[str, frozenset[str]] = BoundedDict(_MAX_CACHED_CONTRACTS)


def disclose_facts(request: PolicyRequest) -> dict[str, Any]:
    """Return the facts that may be sent."""
    names = list_disclosable_arguments(request.contract)
    return {
        name: value
        for name, value in request.facts.items()
        if name not in request.unrecorded_facts and names.issuperset(_find_source_arguments(name, request.contract))
    }


def disclose_touches(request: PolicyRequest) -> Iterator[tuple[str, str, str]]:
    """Yield the side effects, with `*` for every scope that could reveal a withheld argument."""
    withheld_arguments = (_find_source_arguments(name, request.contract) for name in request.unrecorded_facts)
    names = list_disclosable_arguments(request.contract).difference(*withheld_arguments)
    sensitive_effects = {
        (effect.resource, effect.op)
        for effect in request.contract.resources
        if not names.issuperset(_ARGUMENT.findall(effect.scope))
    }
    for resource, operation, scope in request.side_effects:
        yield resource, operation, "*" if (resource, operation) in sensitive_effects else scope


def _find_source_arguments(fact: str, contract: Contract) -> set[str]:
    """Find the arguments behind a fact: a contract may expose one under another name."""
    sources = {
        name
        for node in _iterate_nodes(contract.input_schema, contract.input_schema)
        for name, part in _get_properties(node).items()
        if isinstance(part, dict) and part.get("x-policy") == fact
    }
    return sources or {fact}


def list_disclosable_arguments(contract: Contract) -> frozenset[str]:
    """List the arguments that nothing in the contract marks as sensitive, cached per contract."""
    names = _disclosable_cache.get(contract.digest)
    if names is None:
        names = _disclosable_cache.put(contract.digest, frozenset(_list_disclosable_names(contract.input_schema)))
    return names


def _list_disclosable_names(schema: dict[str, Any]) -> Iterator[str]:
    schemas_by_name: dict[str, list[Any]] = {}
    for node in _iterate_nodes(schema, schema):
        for name, child in _get_properties(node).items():
            schemas_by_name.setdefault(name, []).append(child)
    for name, schemas in schemas_by_name.items():
        if not is_sensitive_name(name) and not any(_is_sensitive(schema, subschema) for subschema in schemas):
            yield name


def _is_sensitive(root: Any, subschema: Any) -> bool:
    """Tell whether a value of this schema, or any part of it, is sensitive."""
    return any(
        node.get("x-sensitivity", "public") != "public"
        or node.get("writeOnly") is True
        or ("$ref" in node and _resolve_ref(root, node["$ref"]) is None)
        or any(is_sensitive_name(name) for name in _get_properties(node))
        for node in _iterate_nodes(root, subschema)
    )


def _get_properties(node: dict[str, Any]) -> dict[str, Any]:
    properties = node.get("properties")
    return properties if isinstance(properties, dict) else {}


def _iterate_nodes(root: Any, subschema: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a schema once, following references. A false match only withholds more."""
    node_ids: set[int] = set()
    stack = [subschema]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            stack += node
        elif isinstance(node, dict) and id(node) not in node_ids:
            node_ids.add(id(node))
            yield node
            stack += node.values()
            if "$ref" in node:
                stack.append(_resolve_ref(root, node["$ref"]))


def _resolve_ref(root: Any, ref: Any) -> Any:
    """Resolve a reference within the schema; return None for any other."""
    if not isinstance(ref, str) or not ref.startswith("#"):
        return None
    target = root
    for part in ref[1:].split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        target = target.get(key) if isinstance(target, dict) else None
    return target
