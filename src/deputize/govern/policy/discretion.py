"""What of a question may be told outside: everything but the arguments a contract marks as sensitive.

In doubt an argument stays here: what any part of the schema says of its name counts, and what no part describes is not
sent. Scopes that were filled from such an argument are sent as `*`.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from deputize.core.contract import Contract
from deputize.core.decision import Question
from deputize.core.sensitive import is_sensitive_name

_ARGUMENT = re.compile(r"\{([^{}]+)\}")
_MOST_REMEMBERED = 10_000
_open: dict[str, frozenset[str]] = {}


def told_facts(question: Question) -> dict[str, Any]:
    """The facts that may leave."""
    names = open_arguments(question.contract)
    return {
        name: value
        for name, value in question.facts.items()
        if name not in question.withheld and names.issuperset(_arguments_behind(name, question.contract))
    }


def told_touches(question: Question) -> Iterator[tuple[str, str, str]]:
    """What the call touches, with every scope widened that could spell a withheld argument."""
    behind = (_arguments_behind(name, question.contract) for name in question.withheld)
    names = open_arguments(question.contract).difference(*behind)
    hidden = {
        (effect.resource, effect.op)
        for effect in question.contract.resources
        if not names.issuperset(_ARGUMENT.findall(effect.scope))
    }
    for resource, operation, scope in question.touches:
        yield resource, operation, "*" if (resource, operation) in hidden else scope


def _arguments_behind(fact: str, contract: Contract) -> set[str]:
    """The arguments a fact is taken from: a contract may expose one under another name."""
    marked = {
        name
        for name, part in _properties(contract.input_schema).items()
        if isinstance(part, dict) and part.get("x-policy") == fact
    }
    return marked or {fact}


def open_arguments(contract: Contract) -> frozenset[str]:
    """The arguments that nothing in the contract calls sensitive, worked out once per contract."""
    known = _open.get(contract.digest)
    if known is None:
        if len(_open) >= _MOST_REMEMBERED:
            _open.clear()
        known = _open[contract.digest] = frozenset(_open_names(contract.input_schema))
    return known


def _open_names(schema: dict[str, Any]) -> Iterator[str]:
    described: dict[str, list[Any]] = {}
    for node in _inside(schema, schema):
        for name, child in _properties(node).items():
            described.setdefault(name, []).append(child)
    for name, places in described.items():
        if not is_sensitive_name(name) and not any(_is_sensitive(schema, place) for place in places):
            yield name


def _is_sensitive(root: Any, place: Any) -> bool:
    """Whether a value here, or anything inside it, is not for others."""
    return any(
        node.get("x-sensitivity", "public") != "public"
        or node.get("writeOnly") is True
        or ("$ref" in node and _resolve(root, node["$ref"]) is None)
        or any(is_sensitive_name(name) for name in _properties(node))
        for node in _inside(root, place)
    )


def _properties(node: dict[str, Any]) -> dict[str, Any]:
    found = node.get("properties")
    return found if isinstance(found, dict) else {}


def _inside(root: Any, place: Any) -> Iterator[dict[str, Any]]:
    """Every object in a schema, references followed, each once. What it wrongly takes for a schema only hides more."""
    seen: set[int] = set()
    waiting = [place]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict) and id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting += node.values()
            if "$ref" in node:
                waiting.append(_resolve(root, node["$ref"]))


def _resolve(root: Any, ref: Any) -> Any:
    """What a reference within the schema leads to; None for any other."""
    if not isinstance(ref, str) or not ref.startswith("#"):
        return None
    target = root
    for part in ref[1:].split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        target = target.get(key) if isinstance(target, dict) else None
    return target
