"""Redact documents by their schema, so that sensitive values never reach a log, an entry or a hash.

A plan is made once per schema. A strict schema names every field, so most tools need no look at the data. Where a
schema allows fields it does not name, names are checked at run time. In doubt a value is sensitive: it suffices that
one branch of the schema says so. `evidence/schema_paths.py` surveys schemas.

A document is walked once. What the schema says of one position is computed once for all documents, and everything that
a caller or a server could multiply is limited: positions, patterns tried on names, and the paths that are listed. Past
a limit, values are redacted instead of checked.
"""

from typing import Any, Final

from deputize.core.sensitive.names import is_sensitive_name
from deputize.core.sensitive.text import REDACTION_MARK
from deputize.evidence.schema_paths import SchemaNode, SchemaTooComplex, collect_sensitive_names, survey_schema

MAX_PATHS: Final = 1_000
_LONGEST_NAME: Final = 128
# Positions of one schema that are remembered, each with the names it knows.
_MAX_MEMORY_WEIGHT: Final = 100_000
_MAX_PATTERN_TESTS: Final = 100_000
_MORE_PATHS: Final = "/\u2026"


class RedactionPlan:
    """What to redact in documents of one schema. A `trivial` plan never changes a document."""

    __slots__ = ("_memory_weight", "_positions", "_root", "names", "trivial")

    def __init__(self, schema: Any) -> None:
        try:
            nodes = survey_schema(schema, is_sensitive_name)
        except SchemaTooComplex:
            # Admission refuses such a schema; if one is met nevertheless, nothing of its documents is shown.
            nodes = (SchemaNode(is_sensitive=True, needs_check=True),)
        self._positions: dict[tuple[tuple[SchemaNode, ...], bool], _Position] = {}
        self._memory_weight = 0
        self._root = self.get_position(nodes, is_undescribed=False)
        self.trivial = not any(node.needs_check for node in nodes)
        # Names of sensitive fields, at any depth.
        self.names = collect_sensitive_names(nodes)

    def apply(self, document: Any) -> tuple[Any, tuple[str, ...]]:
        """Return a copy with sensitive values replaced, and the paths of those values, at most `MAX_PATHS`."""
        if self.trivial:
            return document, ()
        redaction = _Redaction(self)
        return redaction.redact_value(document, self._root, None), tuple(redaction.paths)

    def collect_sensitive_values(self, document: Any) -> list[Any]:
        """Collect the values that `apply` replaces."""
        values: list[Any] = []
        _collect_replaced(document, self.apply(document)[0], values)
        return values

    def get_position(self, nodes: tuple[SchemaNode, ...], *, is_undescribed: bool) -> "_Position":
        """Return the position that these nodes describe together."""
        key = (nodes, is_undescribed)
        position = self._positions.get(key)
        if position is None:
            position = _Position(nodes, is_undescribed)
            self._memory_weight += len(nodes) + len(position.field_names) + 1
            if self._memory_weight > _MAX_MEMORY_WEIGHT and self._positions:
                return _HIDDEN
            self._positions[key] = position
        return position


class _Position:
    """What the nodes that describe one position say together.

    If no schema describes it (`is_undescribed`), only names tell what is sensitive.
    """

    __slots__ = (
        "by_name", "field_names", "fields", "is_checked", "is_sensitive", "is_undescribed", "items", "nodes",
        "pattern_count", "prefix_length",
    )  # fmt: skip

    def __init__(self, nodes: tuple[SchemaNode, ...], is_undescribed: bool) -> None:
        self.nodes = nodes
        self.is_undescribed = is_undescribed
        self.is_sensitive = any(node.is_sensitive for node in nodes)
        self.is_checked = is_undescribed or any(node.needs_check for node in nodes)
        self.by_name = is_undescribed or any(node.is_open for node in nodes)
        self.field_names = frozenset[str]().union(*(node.fields for node in nodes))
        self.pattern_count = sum(len(node.patterns) for node in nodes)
        self.prefix_length = max((len(node.prefix) for node in nodes), default=0)
        # Positions of fields that the schema names (None: of all others) and of items (-1: after the last prefix).
        self.fields: dict[str | None, _Position] = {}
        self.items: dict[int, _Position] = {}


_HIDDEN: Final = _Position((SchemaNode(is_sensitive=True, needs_check=True),), False)
# A path as a chain of steps, written out only if it is listed.
_Path = tuple["_Path | None", str | int]


class _Redaction:
    """The redaction of one document."""

    __slots__ = ("_pattern_tests", "_plan", "paths")

    def __init__(self, plan: RedactionPlan) -> None:
        self._plan = plan
        self._pattern_tests = 0
        self.paths: list[str] = []

    def redact_value(self, value: Any, position: _Position, path: _Path | None) -> Any:
        if position.is_sensitive:
            return self._hide_value(path)
        if not position.is_checked:
            return value
        if isinstance(value, dict):
            return {name: self._redact_field(name, child, position, (path, name)) for name, child in value.items()}
        if isinstance(value, list):
            return [
                self.redact_value(child, self._find_item(position, index), (path, index))
                for index, child in enumerate(value)
            ]
        return value

    def _redact_field(self, name: str, child: Any, position: _Position, path: _Path) -> Any:
        if position.by_name and is_sensitive_name(name):
            return self._hide_value(path)
        return self.redact_value(child, self._find_field(position, name), path)

    def _hide_value(self, path: _Path | None) -> str:
        if len(self.paths) < MAX_PATHS:
            self.paths.append(_format_path(path))
        elif len(self.paths) == MAX_PATHS:
            self.paths.append(_MORE_PATHS)
        return REDACTION_MARK

    def _find_field(self, position: _Position, name: str) -> _Position:
        key = name if name in position.field_names else None
        child = position.fields.get(key)
        if child is not None:
            return child
        self._pattern_tests += position.pattern_count
        if self._pattern_tests > _MAX_PATTERN_TESTS:
            return _HIDDEN
        child = self._build_field(position, name)
        # Patterns may tell two names apart that the schema does not name.
        if key is not None or not position.pattern_count:
            position.fields[key] = child
        return child

    def _build_field(self, position: _Position, name: str) -> _Position:
        children: dict[SchemaNode, None] = {}
        is_undescribed = position.is_undescribed
        for node in position.nodes:
            matches = node.find_field_nodes(name)
            children.update(dict.fromkeys(matches))
            is_undescribed = is_undescribed or (node.is_open and not matches)
        return self._plan.get_position(tuple(children), is_undescribed=is_undescribed)

    def _find_item(self, position: _Position, index: int) -> _Position:
        key = index if index < position.prefix_length else -1
        child = position.items.get(key)
        if child is None:
            children: dict[SchemaNode, None] = {}
            is_undescribed = position.is_undescribed
            for node in position.nodes:
                matches = node.find_item_nodes(index)
                children.update(dict.fromkeys((*matches, *node.contains_nodes)))
                is_undescribed = is_undescribed or (node.is_open and not matches)
            child = position.items[key] = self._plan.get_position(tuple(children), is_undescribed=is_undescribed)
        return child


def _format_path(path: _Path | None) -> str:
    """Write a path as a JSON pointer; long names are cut, because callers choose them."""
    steps: list[str] = []
    while path is not None:
        path, step = path
        name = str(step)
        name = name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "\u2026"
        steps.append("/" + name.replace("~", "~0").replace("/", "~1"))
    return "".join(reversed(steps)) or "/"


def _collect_replaced(value: Any, clean_copy: Any, values: list[Any]) -> None:
    """Compare a document with its redacted copy, and collect what was replaced."""
    if value is clean_copy:
        return
    if isinstance(value, dict) and isinstance(clean_copy, dict):
        for name, each in value.items():
            _collect_replaced(each, clean_copy[name], values)
    elif isinstance(value, list) and isinstance(clean_copy, list):
        for each, clean_item in zip(value, clean_copy, strict=True):
            _collect_replaced(each, clean_item, values)
    elif clean_copy == REDACTION_MARK:
        values.append(value)
