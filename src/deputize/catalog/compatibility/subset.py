"""Prove that every value that some schemas allow is allowed by another schema, or find where that cannot be proven.

A schema demands everything that its keywords demand, so each keyword is proven on its own, from all that the other
schemas say about the value. Where they leave a choice (`anyOf`, several types, an enumeration), each case is proven.
A keyword that has no rule here is only proven by the same keyword. A reference that leads back to a proof under way
is taken as proven, which is right because the value at hand has become smaller meanwhile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import Any, Final

from deputize.catalog.compatibility.array_rules import ARRAY_RULES
from deputize.catalog.compatibility.breaks import BreakKind, Path, SchemaBreak, make_unproven
from deputize.catalog.compatibility.conjunctions import KIND_PARTS, Conjunction, has_in_place_schemas
from deputize.catalog.compatibility.emptiness import is_empty, list_alternatives
from deputize.catalog.compatibility.json_equality import NUMBER_KINDS
from deputize.catalog.compatibility.object_rules import OBJECT_RULES
from deputize.catalog.compatibility.scalar_rules import SCALAR_RULES
from deputize.catalog.compatibility.schema_parts import SchemaPart, StepBudget, list_keywords
from deputize.catalog.compatibility.value_checks import is_allowed

# They are read together with the keyword they belong to.
_COMPANIONS: Final = frozenset({"then", "else", "minContains", "maxContains"})
# What they demand depends on keywords beside them, so that the same text does not mean the same.
_DEPENDENT: Final = frozenset(
    {"additionalProperties", "unevaluatedProperties", "items", "unevaluatedItems", "if", "contains"}
)
_MAX_BREAKS: Final = 50


class SubsetProof:
    """Proofs about the schemas of two documents."""

    def __init__(self, budget: StepBudget) -> None:
        self._budget = budget
        self._proven: set[tuple[Any, ...]] = set()
        # The first break of each failed proof, where that began, and whether it was sought quickly, without a reason.
        self._first_breaks: dict[tuple[Any, ...], tuple[SchemaBreak, Path, bool]] = {}
        # The proofs under way: the depth of the value at which each began, and its place among them.
        self._open: dict[tuple[Any, ...], tuple[int, int]] = {}
        self._depth = 0
        # The earliest proof under way that a finished one relies on.
        self._relied_on: float = inf
        self._is_quick = False

    def find_breaks(self, source: Conjunction, target: SchemaPart, path: Path) -> list[SchemaBreak]:
        """Find the breaks: where a value that the source allows may be refused by the target. None if it is proven."""
        self._budget.spend(1 + len(source.parts))
        if target.schema is True or target.schema == {} or source.is_impossible or not source.kinds:
            return []
        if target.schema is False:
            return [] if is_empty(source) else [SchemaBreak(path=path, kind=BreakKind.EXTRA)]
        if any(part.key == target.key for part in source.parts) or _has_same_text(source, target, None):
            return []
        key = (source.key, target.key)
        if key in self._open:
            depth, place = self._open[key]
            if depth >= self._depth:
                return [make_unproven(path, "it refers to itself")]
            self._relied_on = min(self._relied_on, place)
            return []
        if key in self._proven:
            return []
        if key in self._first_breaks:
            first_break, start, was_quick = self._first_breaks[key]
            if self._is_quick or not was_quick:
                return [replace(first_break, path=(*path, *first_break.path[len(start) :]))]
        return self._prove_keywords(key, source, target, path)

    def is_proven(self, source: Conjunction, target: SchemaPart) -> bool:
        """Tell whether it is proven that the target allows all that the source allows."""
        with self._quickly():
            return not self.find_breaks(source, target, ())

    @contextmanager
    def _quickly(self) -> Iterator[None]:
        """Stop at the first break inside, because only whether there is one counts."""
        before, self._is_quick = self._is_quick, True
        try:
            yield
        finally:
            self._is_quick = before

    def _prove_keywords(
        self, key: tuple[Any, ...], source: Conjunction, target: SchemaPart, path: Path
    ) -> list[SchemaBreak]:
        place, relied_before = len(self._open), self._relied_on
        self._open[key], self._relied_on = (self._depth, place), inf
        breaks: list[SchemaBreak] = []
        try:
            for keyword, _ in list_keywords(target):
                breaks += self._prove_keyword(source, target, keyword, path)
                if len(breaks) >= (1 if self._is_quick else _MAX_BREAKS):
                    break
        finally:
            del self._open[key]
        if breaks:
            self._first_breaks[key] = (breaks[0], path, self._is_quick)
            self._relied_on = inf
        elif self._relied_on >= place:
            # A proof that relies on an earlier one counts only once that one is finished.
            self._proven.add(key)
            self._relied_on = inf
        self._relied_on = min(self._relied_on, relied_before)
        return breaks

    def _prove_keyword(self, source: Conjunction, target: SchemaPart, keyword: str, path: Path) -> list[SchemaBreak]:
        if keyword in _COMPANIONS or (keyword not in _DEPENDENT and _has_same_text(source, target, keyword)):
            return []
        breaks = self._prove_directly(source, target, keyword, path)
        if not breaks or keyword in ("$ref", "allOf"):
            return breaks
        values = source.finite_values
        if values is not None and all(is_allowed(value, target, keyword) is True for value in values):
            return []
        for cases in _iterate_cases(source):
            with self._quickly():
                self._budget.spend(len(cases))
                if not any(self._prove_keyword(case, target, keyword, path) for case in cases):
                    return []
        return breaks if self._is_quick else self._explain_cases(source, target, keyword, path) or breaks

    def _explain_cases(self, source: Conjunction, target: SchemaPart, keyword: str, path: Path) -> list[SchemaBreak]:
        """Explain by the first case that breaks, if that says more than that nothing covers all cases."""
        cases = next(_iterate_cases(source), []) if keyword in ("anyOf", "oneOf") else []
        for case in cases:
            breaks = self._prove_keyword(case, target, keyword, path)
            if breaks:
                return breaks if all(each.kind is not BreakKind.UNPROVEN for each in breaks) else []
        return []

    def _prove_directly(self, source: Conjunction, target: SchemaPart, keyword: str, path: Path) -> list[SchemaBreak]:
        """Prove one keyword without looking at the cases of the source one by one."""
        if keyword in SCALAR_RULES:
            scalar_break = SCALAR_RULES[keyword](source, keyword, target.schema[keyword], (*path, keyword))
            return [] if scalar_break is None else [scalar_break]
        if keyword in OBJECT_RULES:
            rule = OBJECT_RULES[keyword]
            return list(rule(self._prove_child, source, target, path)) if "object" in source.kinds else []
        if keyword in ARRAY_RULES:
            rule = ARRAY_RULES[keyword]
            return list(rule(self._prove_child, source, target, path)) if "array" in source.kinds else []
        match keyword:
            case "$ref":
                part = target.resolve()
                if part is None:
                    return [make_unproven(path, "its $ref cannot be followed")]
                return self.find_breaks(source, part, path)
            case "allOf":
                return [
                    each
                    for place, schema in enumerate(target.schema["allOf"])
                    for each in self.find_breaks(source, target.get_part(schema), (*path, "allOf", place))
                ]
            case "anyOf":
                return self._prove_any(source, target, path)
            case "oneOf":
                return self._prove_one(source, target, path)
            case "not":
                return self._prove_not(source, target, path)
            case "if":
                return self._prove_condition(source, target, path)
            case "dependentSchemas":
                return self._prove_dependents(source, target, path)
            case "unevaluatedProperties" | "unevaluatedItems":
                return self._prove_unevaluated(source, target, keyword, path)
            case _:
                return [make_unproven((*path, keyword), f"{keyword} is not a keyword that can be compared")]

    def _prove_child(self, source: Conjunction, target: SchemaPart, path: Path) -> list[SchemaBreak]:
        self._depth += 1
        try:
            return self.find_breaks(source, target, path)
        finally:
            self._depth -= 1

    def _prove_any(self, source: Conjunction, target: SchemaPart, path: Path) -> list[SchemaBreak]:
        parts = [target.get_part(each) for each in target.schema["anyOf"]]
        if any(self.is_proven(source, part) for part in parts):
            return []
        return self._explain_choice(source, parts, (*path, "anyOf"))

    def _prove_one(self, source: Conjunction, target: SchemaPart, path: Path) -> list[SchemaBreak]:
        """Prove that one alternative allows all that the source allows, and that no other allows any of it."""
        parts = [target.get_part(each) for each in target.schema["oneOf"]]
        for part in parts:
            others = [each for each in parts if each is not part]
            if self.is_proven(source, part) and all(is_empty(source.add(part, other)) for other in others):
                return []
        return self._explain_choice(source, parts, (*path, "oneOf"))

    def _explain_choice(self, source: Conjunction, parts: list[SchemaPart], path: Path) -> list[SchemaBreak]:
        """Explain why no alternative is right: by the breaks of the only one that is for the same kind of value."""
        candidates = [
            (place, part) for place, part in enumerate(parts) if not source.kinds.isdisjoint(Conjunction([part]).kinds)
        ]
        if len(candidates) == 1 and not self._is_quick:
            place, part = candidates[0]
            if breaks := self.find_breaks(source, part, (*path, place)):
                return breaks
        return [make_unproven(path, "no single alternative covers it")]

    def _prove_not(self, source: Conjunction, target: SchemaPart, path: Path) -> list[SchemaBreak]:
        refused_part = target.get_part(target.schema["not"])
        known_parts = [each.get_part(each.schema["not"]) for each in source.parts if "not" in each.schema]
        if any(self.is_proven(Conjunction([refused_part]), part) for part in known_parts) or is_empty(
            source.add(refused_part)
        ):
            return []
        return [make_unproven((*path, "not"), "it refuses something that is not refused elsewhere")]

    def _prove_condition(self, source: Conjunction, target: SchemaPart, path: Path) -> list[SchemaBreak]:
        """Prove `if`, `then` and `else`: from the same condition, or by proving both consequences."""
        condition = target.get_part(target.schema["if"])
        consequences = [target.get_part(target.schema.get(keyword, True)) for keyword in ("then", "else")]
        if all(self.is_proven(source, part) for part in consequences):
            return []
        for part in source.parts:
            if "if" in part.schema and self._is_same(part.get_part(part.schema["if"]), condition):
                known_parts = [part.get_part(part.schema.get(keyword, True)) for keyword in ("then", "else")]
                pairs = zip(known_parts, consequences, strict=True)
                if all(self.is_proven(source.add(known_part), consequence) for known_part, consequence in pairs):
                    return []
        return [make_unproven((*path, "if"), "its condition or what follows from it has changed")]

    def _is_same(self, one: SchemaPart, other: SchemaPart) -> bool:
        return self.is_proven(Conjunction([one]), other) and self.is_proven(Conjunction([other]), one)

    def _prove_dependents(self, source: Conjunction, target: SchemaPart, path: Path) -> list[SchemaBreak]:
        breaks = []
        for name, schema in target.schema["dependentSchemas"].items() if "object" in source.kinds else ():
            known_parts = [
                part.get_part(part.schema["dependentSchemas"][name])
                for part in source.parts
                if name in part.schema.get("dependentSchemas", {})
            ]
            breaks += self.find_breaks(
                source.add(*known_parts), target.get_part(schema), (*path, "dependentSchemas", name)
            )
        return breaks

    def _prove_unevaluated(
        self, source: Conjunction, target: SchemaPart, keyword: str, path: Path
    ) -> list[SchemaBreak]:
        """Prove what is left for properties or items: it can be known if no other schema applies in the same place."""
        if target.schema[keyword] is True:
            return []
        kind, simple = ("object", "additionalProperties") if keyword.endswith("Properties") else ("array", "items")
        if kind not in source.kinds or simple in target.schema:
            return []
        if kind == "object" and not has_in_place_schemas(target.schema):
            return list(OBJECT_RULES[simple](self._prove_child, source, target, path))
        return [make_unproven((*path, keyword), "it depends on the schemas beside it")]


def _has_same_text(source: Conjunction, target: SchemaPart, keyword: str | None) -> bool:
    """Tell whether a schema of the source says the same, as a whole or under a keyword."""
    text = target.get_text(keyword)
    return text is not None and any(part.get_text(keyword) == text for part in source.parts)


def _iterate_cases(source: Conjunction) -> Iterator[list[Conjunction]]:
    """Yield the ways to divide the source into cases: by its alternatives, and by the kinds of value."""
    for _, branches in list_alternatives(source):
        yield [source.add(branch) for branch in branches]
    names = {"number" if kind in NUMBER_KINDS else kind for kind in source.kinds}
    if len(names) > 1:
        yield [source.add(KIND_PARTS[name]) for name in sorted(names)]
