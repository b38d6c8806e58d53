"""Parse policy files into rules with their id, place, reason and approval annotations.

Cedar's parser reports neither the line of an error nor a second error. So the text is split into rules first and each
is parsed separately: all errors are reported at once, by file and line. `slices.py` combines rules for evaluation.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock
from typing import Any, Literal

import cedarpy
import orjson

from deputize.core.bounded_dict import BoundedDict
from deputize.core.canonical import compute_digest
from deputize.core.contract.availability import AdmittedDrift
from deputize.core.decision import ApprovalRequirement, MatchedRule
from deputize.core.errors import PolicyInvalid
from deputize.govern.policy import approval_annotations
from deputize.govern.policy.approval_annotations import ApprovalTerms, parse_approval_terms
from deputize.govern.policy.user_interaction import INTERACTION_RULE
from deputize.govern.token_authorization import ADMIN_RULE, CAPABILITIES_RULE, CEILING_RULE, SCOPES_RULE
from deputize.sandboxes.port import Backend

NOTHING_PERMITS = "nothing-permits"
EVALUATION_ERROR = "evaluation-error"
RESERVED_IDS = frozenset(
    {NOTHING_PERMITS, EVALUATION_ERROR, SCOPES_RULE, CAPABILITIES_RULE, CEILING_RULE, ADMIN_RULE, INTERACTION_RULE}
)
# The prefixes of hooks and external decision points; a rule with such an id would look like one of them.
RESERVED_PREFIXES = ("hook:", "authzen:")
_ADMITTED_DRIFT = {"allow": AdmittedDrift.READS, "allow-writes": AdmittedDrift.WRITES}
# A misspelt @decision would silently turn an approval into a permit, so unknown annotations are errors.
ANNOTATIONS = ("id", "reason", "decision", "drifted", "idempotency_key", "backend", *approval_annotations.ANNOTATIONS)
_BACKENDS = frozenset(Backend)
_BACKEND_NAMES = " or ".join(f'"{each}"' for each in Backend)
MAX_REPORTED_ERRORS = 200
MAX_RULES = 20_000

# The approximate memory of cached rules, in bytes; limited because callers who check policies choose how long rules
# are.
_MAX_CACHE_BYTES = 128 * 1024 * 1024
# Strings and comments as Cedar defines them; a carriage return ends a comment too. An unterminated string is matched to
# the end of the text: retrying at each quote would take hours.
_STRING_OR_COMMENT = r'//[^\r\n]*|"(?:\\.|[^"\\])*+(?:"|\\?\Z)'
_TOKEN = re.compile(rf"{_STRING_OR_COMMENT}|;", re.DOTALL)
_BETWEEN = re.compile(r"(?:\s++|//[^\r\n]*+)*+")
# Cedar's parser recurses at each of these without a limit: 3,000 brackets crash the process.
_LEVEL = re.compile(rf"{_STRING_OR_COMMENT}|[(\[{{]|[)\]}}]|&&|\|\||[.+*!-]|\bif\b", re.DOTALL)
_MAX_BRACKETS = 60
_MAX_LEVELS = 500
# Each level takes up to four of the 128 levels that the JSON of a rule may have; this many are always safe.
_SAFE_LEVELS = 20
_MAX_RULE_LENGTH = 262_144
_TOO_DEEP = (
    "this rule is nested too deeply: split it into several rules or when clauses, or use a set as in [a, b].contains(c)"
)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}")
# Characters that make a text look different from what is evaluated.
_INVISIBLE_CHARACTERS = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
_MAX_REASON_LENGTH = 400
_ANNOTATION_NAMES = ", ".join(f"@{name}" for name in ANNOTATIONS[:-1]) + f" and @{ANNOTATIONS[-1]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyFile:
    """The text of a policy file, and the path that messages name it by."""

    path: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyDiagnostic:
    """An error or warning about a policy, with its place."""

    file: str
    line: int
    message: str

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "message": self.message}


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleContent:
    """The content of one rule, independent of its place."""

    id: str
    effect: Literal["permit", "forbid"]
    requires_approval: bool
    approval_terms: ApprovalTerms
    reason: str
    ast: bytes
    action: Mapping[str, Any]
    resource: Mapping[str, Any]
    # Which calls of tools that their servers changed it lets pass, which are held otherwise.
    admitted_drift: AdmittedDrift = AdmittedDrift.NONE
    # Of a permit: whether irreversible calls that it allows may come without an idempotency key.
    is_key_optional: bool = False
    # Of a forbid: the weakest backend on which it lets calls be made.
    backend: str | None = None


# The content of a rule, or what is wrong with it.
ParsedRule = RuleContent | tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyRule:
    """One rule with its place. `ast` is Cedar's JSON of the rule without annotations, ready to be part of a set."""

    file: str
    line: int
    text: str
    content: RuleContent = field(repr=False)

    @property
    def id(self) -> str:
        return self.content.id

    @property
    def effect(self) -> Literal["permit", "forbid"]:
        return self.content.effect

    @property
    def requires_approval(self) -> bool:
        return self.content.requires_approval

    @property
    def is_conditional_forbid(self) -> bool:
        """True for a forbid that lets calls pass which are approved, or made in a sandbox that is strong enough."""
        return self.effect == "forbid" and (self.requires_approval or self.content.backend is not None)

    @property
    def approval_terms(self) -> ApprovalTerms:
        return self.content.approval_terms

    @property
    def reason(self) -> str:
        return self.content.reason

    @property
    def ast(self) -> bytes:
        return self.content.ast

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def rule_ref(self) -> MatchedRule:
        return MatchedRule(id=self.id, where=self.where, reason=self.reason)

    @property
    def requirement(self) -> ApprovalRequirement:
        """The approval that the rule requires when it matches, if it has `@decision("ask")`."""
        terms = self.approval_terms
        return ApprovalRequirement(
            rule=self.id, where=self.where, reason=self.reason, groups=terms.groups, quorum=terms.quorum,
            deadline_seconds=terms.deadline_seconds, step_up=terms.step_up,
        )  # fmt: skip


def parse_policies(files: Sequence[PolicyFile]) -> tuple[PolicyRule, ...]:
    """Parse all rules, in the order of files and lines, or raise `PolicyInvalid` with all errors of all files."""
    rules, diagnostics = parse_with_diagnostics(files)
    if diagnostics:
        raise build_invalid_error(diagnostics)
    return rules


def parse_with_diagnostics(files: Sequence[PolicyFile]) -> tuple[tuple[PolicyRule, ...], tuple[PolicyDiagnostic, ...]]:
    """Parse all rules; return the valid ones, and diagnostics for the rest."""
    rules: list[PolicyRule] = []
    diagnostics: list[PolicyDiagnostic] = []
    count = 0
    for file in files:
        diagnostics += _find_invisible_characters(file)
        for line, text in split_rules(file.text):
            count += 1
            if count > MAX_RULES:
                message = f"there are more than {MAX_RULES} rules, the maximum: remove or combine rules"
                return tuple(rules), (*diagnostics, PolicyDiagnostic(file=file.path, line=line, message=message))
            content = _rule_cache.get(text)
            if content is None:
                content = cache_rule(text, parse_rule(text))
            if isinstance(content, RuleContent):
                rules.append(PolicyRule(file=file.path, line=line, text=text, content=content))
            else:
                diagnostics += [PolicyDiagnostic(file=file.path, line=line, message=message) for message in content]
    return tuple(rules), (*diagnostics, *_find_duplicate_ids(rules), *_find_duplicate_paths(files))


def build_invalid_error(diagnostics: Sequence[PolicyDiagnostic]) -> PolicyInvalid:
    first = diagnostics[0]
    more = f", and {len(diagnostics) - 1} more" if len(diagnostics) > 1 else ""
    return PolicyInvalid(
        f"{first.file}:{first.line}: {first.message}{more}",
        details={
            "errors": [diagnostic.to_json() for diagnostic in diagnostics[:MAX_REPORTED_ERRORS]],
            "count": len(diagnostics),
        },
    )


def compute_set_digest(files: Iterable[PolicyFile]) -> str:
    """Compute the digest of a set of policy files, as stored beside the active policies."""
    return compute_digest({"files": [{"path": file.path, "text": file.text} for file in files]})


def split_rules(text: str) -> Iterator[tuple[int, str]]:
    """Split a text into rules at semicolons outside strings and comments; yield each rule's line and text."""
    line, counted_offset, start = 1, 0, _find_rule_start(text, 0)
    for token in _TOKEN.finditer(text, start):
        if token[0] == ";":
            line, counted_offset = line + text.count("\n", counted_offset, start), start
            yield line, text[start : token.end()]
            start = _find_rule_start(text, token.end())
    if start < len(text):
        yield line + text.count("\n", counted_offset, start), text[start:]


def _find_rule_start(text: str, at: int) -> int:
    """Find the start of the next rule, after white space and comments."""
    between = _BETWEEN.match(text, at)
    return between.end() if between else at


def list_unparsed_texts(files: Iterable[PolicyFile]) -> list[str]:
    """List the texts of the rules that are not in the cache, at most as many as a set may have."""
    texts = (text for file in files for _, text in split_rules(file.text))
    return list(dict.fromkeys(text for text in islice(texts, MAX_RULES) if _rule_cache.get(text) is None))


def cache_rule(text: str, parsed_rule: ParsedRule) -> ParsedRule:
    """Keep a parsed rule by its text, so that only changed rules of a set are parsed again."""
    size = len(parsed_rule.ast) if isinstance(parsed_rule, RuleContent) else 0
    with _rule_cache_lock:
        return _rule_cache.put(text, parsed_rule, weight=1_000 + 4 * len(text) + size)


def rule_to_json(parsed_rule: ParsedRule) -> dict[str, Any] | list[str]:
    if not isinstance(parsed_rule, RuleContent):
        return list(parsed_rule)
    return {
        "id": parsed_rule.id,
        "effect": parsed_rule.effect,
        "requires_approval": parsed_rule.requires_approval,
        "approval_terms": parsed_rule.approval_terms.to_json(),
        "reason": parsed_rule.reason,
        "ast": parsed_rule.ast.decode(),
        "action": dict(parsed_rule.action),
        "resource": dict(parsed_rule.resource),
        "admitted_drift": int(parsed_rule.admitted_drift),
        "is_key_optional": parsed_rule.is_key_optional,
        "backend": parsed_rule.backend,
    }


def rule_from_json(value: dict[str, Any] | list[str]) -> ParsedRule:
    if isinstance(value, list):
        return tuple(value)
    terms = value["approval_terms"]
    approval_terms = ApprovalTerms(**(terms | {"groups": tuple(terms["groups"])}))
    admitted_drift = AdmittedDrift(value["admitted_drift"])
    return RuleContent(
        **(value | {"approval_terms": approval_terms, "ast": value["ast"].encode(), "admitted_drift": admitted_drift})
    )


_rule_cache: BoundedDict[str, ParsedRule] = BoundedDict(_MAX_CACHE_BYTES)
# Policies are checked in several threads.
_rule_cache_lock = Lock()


def parse_rule(text: str) -> ParsedRule:
    """Parse the text of one rule."""
    if len(text) > _MAX_RULE_LENGTH:
        return (f"this rule has {len(text)} characters, more than {_MAX_RULE_LENGTH}: split it into several rules",)
    levels = _count_levels(text)
    if levels > _MAX_LEVELS:
        return (_TOO_DEEP,)
    try:
        policies_json = orjson.loads(cedarpy.policies_to_json_str(text))
    except ValueError as error:
        return (f"this is not valid Cedar: {str(error).splitlines()[0]}",)
    if policies_json["templates"]:
        return ("this is a template, and templates are not supported: write a rule with its principal and resource",)
    if len(policies_json["staticPolicies"]) != 1:
        return ("there is no rule here: a rule starts with permit or forbid",)
    (ast,) = policies_json["staticPolicies"].values()
    annotations = ast.pop("annotations", {})
    errors = tuple(_find_annotation_errors(annotations, ast["effect"]))
    if errors:
        return errors
    try:
        ast_json = orjson.dumps(ast, option=orjson.OPT_SORT_KEYS)
        if levels > _SAFE_LEVELS:
            cedarpy.PolicySet.from_json_str(build_set_json([(annotations["id"], ast_json)]))
    except (TypeError, ValueError):
        return (_TOO_DEEP,)  # the only case that is valid as text but not as JSON
    return RuleContent(
        id=annotations["id"],
        effect=ast["effect"],
        requires_approval="decision" in annotations,
        approval_terms=parse_approval_terms(annotations),
        reason=annotations.get("reason") or "",
        ast=ast_json,
        action=ast["action"],
        resource=ast["resource"],
        admitted_drift=_ADMITTED_DRIFT.get(annotations.get("drifted"), AdmittedDrift.NONE),
        is_key_optional="idempotency_key" in annotations,
        backend=annotations.get("backend"),
    )


def _count_levels(text: str) -> int:
    """Count the levels that Cedar's parser recurses, as an upper bound; real rules stay far below the limit."""
    brackets = levels = 0
    for token in _LEVEL.finditer(text):
        sign = token[0][0]
        if sign in ")]}":
            brackets -= 1
        elif sign not in '"/':
            levels += 1  # an index is a bracket that closes at once and still adds a level
            brackets += sign in "([{"
        if brackets > _MAX_BRACKETS:
            return _MAX_LEVELS + 1
        if levels > _MAX_LEVELS:
            return levels
    return levels


def build_set_json(rules: Iterable[tuple[str, bytes]]) -> str:
    """Build Cedar's JSON of a set of policies. Ids need no escaping, because `_ID` allows only safe characters."""
    policies = ",".join(f'"{name}":{ast.decode()}' for name, ast in rules)
    return f'{{"templates":{{}},"templateLinks":[],"staticPolicies":{{{policies}}}}}'


def _find_annotation_errors(annotations: Mapping[str, str | None], effect: str) -> Iterator[str]:
    name = annotations.get("id")
    if not name:
        yield 'this rule has no id: write @id("some-name") above it'
    elif not _ID.fullmatch(name):
        yield "this rule has an invalid id: use at most 128 letters, digits and _ . : / -, first a letter or digit"
    elif name in RESERVED_IDS or name.startswith(RESERVED_PREFIXES):
        yield f"the id {name} is reserved for the gateway: choose another id"
    if "decision" in annotations and annotations["decision"] != "ask":
        yield '@decision must be "ask": remove it if the rule allows or denies without approval'
    if "drifted" in annotations and (annotations["drifted"] not in _ADMITTED_DRIFT or effect != "permit"):
        yield (
            '@drifted must be "allow" for reads or "allow-writes" for all calls, on a permit: without it, calls of a '
            "tool that its server changed are held"
        )
    if "idempotency_key" in annotations and (annotations["idempotency_key"] != "optional" or effect != "permit"):
        yield (
            '@idempotency_key must be "optional", on a permit, which then allows irreversible calls without a key: a '
            "repeat of one is not recognized"
        )
    if "backend" in annotations and (annotations["backend"] not in _BACKENDS or effect != "forbid"):
        yield (
            f"@backend must be {_BACKEND_NAMES}, on a forbid, which then forbids calls that are made in no sandbox or "
            "in a weaker one"
        )
    if len(annotations.get("reason") or "") > _MAX_REASON_LENGTH:
        yield f"@reason is longer than {_MAX_REASON_LENGTH} characters: shorten it"
    yield from approval_annotations.find_annotation_errors(annotations)
    for unknown in sorted(set(annotations) - set(ANNOTATIONS)):
        yield f"unknown annotation @{unknown}: use {_ANNOTATION_NAMES}"


def _find_invisible_characters(file: PolicyFile) -> Iterator[PolicyDiagnostic]:
    line, counted_offset = 1, 0
    for match in islice(_INVISIBLE_CHARACTERS.finditer(file.text), MAX_REPORTED_ERRORS):
        line, counted_offset = line + file.text.count("\n", counted_offset, match.start()), match.start()
        code_point = f"U+{ord(match[0]):04X}"
        message = f"remove the invisible character {code_point}: it can make a rule look different from what it does"
        yield PolicyDiagnostic(file=file.path, line=line, message=message)


def _find_duplicate_ids(rules: Sequence[PolicyRule]) -> Iterator[PolicyDiagnostic]:
    first: dict[str, PolicyRule] = {}
    for rule in rules:
        before = first.setdefault(rule.id, rule)
        if before is not rule:
            message = f"the id {rule.id} is already used at {before.where}: choose another id"
            yield PolicyDiagnostic(file=rule.file, line=rule.line, message=message)


def _find_duplicate_paths(files: Sequence[PolicyFile]) -> Iterator[PolicyDiagnostic]:
    paths: set[str] = set()
    for file in files:
        if file.path in paths:
            yield PolicyDiagnostic(
                file=file.path, line=1, message="this path occurs twice: give each file its own path"
            )
        paths.add(file.path)
