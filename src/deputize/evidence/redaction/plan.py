"""Redact documents by their schema, so that sensitive values never reach a log, an entry or a hash.

A plan is made once per schema. A strict schema names every field, so most tools need no look at the data. Where a
schema allows fields it does not name, names are checked at run time. In doubt a value is sensitive: it suffices that
one branch of the schema says so. `evidence/redaction/schema_paths.py` surveys schemas.

Texts that no mark and no name hides are searched for secrets and personal data (`core/sensitive/text.py`). A field that
the schema marks `public` or `internal` may show personal data, because its author said so, but never a secret.

A document is walked once. What the schema says of one position is computed once for all documents, and everything that
a caller or a server could multiply is limited: positions, patterns tried on names, and the paths that are listed. Past
a limit, values are redacted instead of checked.
"""

from typing import Any, Final

from deputize.core.sensitive.marks import REDACTION_MARK
from deputize.core.sensitive.names import is_sensitive_name
from deputize.core.sensitive.text import DocumentSearch, may_hold_sensitive_text
from deputize.evidence.redaction.schema_paths import (
    SchemaNode,
    SchemaTooComplex,
    collect_sensitive_names,
    survey_schema,
)

MAX_PATHS: Final = 1_000
_MAX_NAME_LENGTH: Final = 128
# Positions of one schema that are remembered, each with the names it knows.
_MAX_MEMORY_WEIGHT: Final = 100_000
_MAX_PATTERN_TESTS: Final = 100_000
_SMALLEST_CARD_NUMBER: Final = 10**12
_MORE_PATHS: Final = "/\u2026"


class RedactionPlan:
    """What to redact in documents of one schema. A `trivial` plan hides nothing but what is found in texts."""

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

    def apply(self, document: Any, canonical: bytes | None = None) -> tuple[Any, tuple[str, ...]]:
        """Return a copy with sensitive values replaced, and the paths of those values, at most `MAX_PATHS`.

        `canonical` is the document as JSON, if it is at hand: one look at it can spare the search of each text.
        """
        if canonical is not None and not may_hold_sensitive_text(canonical):
            return (document, ()) if self.trivial else self.apply_marks(document)
        redaction = _Redaction(self)
        visible_document = redaction.search_value(document, self._root, None, DocumentSearch())
        return (visible_document, tuple(redaction.paths)) if redaction.paths else (document, ())

    def apply_marks(self, document: Any) -> tuple[Any, tuple[str, ...]]:
        """Do as `apply`, but only by the schema and by names, for what the caller itself reads."""
        redaction = _Redaction(self)
        visible_document = redaction.redact_value(document, self._root, None)
        return (visible_document, tuple(redaction.paths)) if redaction.paths else (document, ())

    def collect_sensitive_values(self, document: Any) -> list[Any]:
        """Collect the values that the schema or their names call sensitive."""
        if self.trivial:
            return []
        redaction = _Redaction(self)
        redaction.redact_value(document, self._root, None)
        return redaction.hidden_values

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
        "pattern_count", "prefix_length", "shows_personal_data",
    )  # fmt: skip

    def __init__(self, nodes: tuple[SchemaNode, ...], is_undescribed: bool) -> None:
        self.nodes = nodes
        self.is_undescribed = is_undescribed
        self.is_sensitive = any(node.is_sensitive for node in nodes)
        self.is_checked = is_undescribed or any(node.needs_check for node in nodes)
        self.shows_personal_data = any(node.shows_personal_data for node in nodes)
        self.by_name = is_undescribed or any(node.is_open for node in nodes)
        self.field_names = frozenset[str]().union(*(node.fields for node in nodes))
        self.pattern_count = sum(len(node.patterns) for node in nodes)
        self.prefix_length = max((len(node.prefix) for node in nodes), default=0)
        # Positions of fields that the schema names (None: of all others) and of items (-1: after the last prefix).
        self.fields: dict[str | None, _Position] = {}
        self.items: dict[int, _Position] = {}


_HIDDEN: Final = _Position((SchemaNode(is_sensitive=True, needs_check=True),), False)


def _is_sensitive_field(position: _Position, name: str) -> bool:
    return position.by_name and is_sensitive_name(name)


# A path as a chain of steps, written out only if it is listed.
_Path = tuple["_Path | None", str | int]


class _Redaction:
    """The redaction of one document."""

    __slots__ = ("_pattern_tests", "_plan", "hidden_values", "paths")

    def __init__(self, plan: RedactionPlan) -> None:
        self._plan = plan
        self._pattern_tests = 0
        self.paths: list[str] = []
        # What the schema or a name calls sensitive.
        self.hidden_values: list[Any] = []

    def redact_value(self, value: Any, position: _Position, path: _Path | None) -> Any:
        """Redact a value by its schema and by names, without a search of texts."""
        if position.is_sensitive:
            return self._hide_value(value, path)
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
        if _is_sensitive_field(position, name):
            return self._hide_value(child, path)
        return self.redact_value(child, self._find_field(position, name), path)

    def search_value(self, value: Any, position: _Position, path: _Path | None, search: DocumentSearch) -> Any:
        """Redact a value by its schema, by names, and by what is found in its texts."""
        if position.is_sensitive:
            return self._hide_value(value, path)
        if position.shows_personal_data:
            search = search.show_personal_data()
        if isinstance(value, dict):
            return self._search_fields(value, position, path, search)
        if isinstance(value, list):
            return [
                self.search_value(child, self._find_item(position, index), (path, index), search)
                for index, child in enumerate(value)
            ]
        # A number may be that of a card.
        if not isinstance(value, str) and (type(value) is not int or value < _SMALLEST_CARD_NUMBER):
            return value
        text = str(value)
        visible_text = search.redact(text)
        if visible_text == text:
            return value
        self._add_path(path)
        return visible_text

    def _search_fields(
        self, value: dict[str, Any], position: _Position, path: _Path | None, search: DocumentSearch
    ) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, child in value.items():
            # A caller may have chosen a name that the schema does not know, and have written a secret there.
            visible_name = name if name in position.field_names else search.redact(name)
            while visible_name in result or (visible_name != name and visible_name in value):
                # Two names may be equal once redacted; both fields stay.
                visible_name += "'"
            child_path = (path, visible_name)
            if visible_name != name:
                self._add_path(child_path)
            if _is_sensitive_field(position, name):
                result[visible_name] = self._hide_value(child, child_path)
            else:
                result[visible_name] = self.search_value(child, self._find_field(position, name), child_path, search)
        return result

    def _hide_value(self, value: Any, path: _Path | None) -> str:
        self.hidden_values.append(value)
        self._add_path(path)
        return REDACTION_MARK

    def _add_path(self, path: _Path | None) -> None:
        if len(self.paths) < MAX_PATHS:
            self.paths.append(_format_path(path))
        elif len(self.paths) == MAX_PATHS:
            self.paths.append(_MORE_PATHS)

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
        name = name if len(name) <= _MAX_NAME_LENGTH else name[:_MAX_NAME_LENGTH] + "\u2026"
        steps.append("/" + name.replace("~", "~0").replace("/", "~1"))
    return "".join(reversed(steps)) or "/"
