"""Policy files taken apart: every rule with its id, its place, its author's reason, and whether and whom it asks.

Cedar's parser says neither where it stumbled nor anything about a second mistake, so the text is cut into rules first
and each is parsed on its own: every mistake is told at once, by file and line. `slices.py` puts rules together again.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock
from typing import Any, Literal

import cedarpy
import orjson

from deputize.core.canonical import digest
from deputize.core.decision import Demand, Rule
from deputize.core.errors import PolicyInvalid
from deputize.govern.decide import ADMIN, CAPABILITIES, CEILING, SCOPES
from deputize.govern.policy import wants
from deputize.govern.policy.kept import Kept
from deputize.govern.policy.wants import Wants, wants_of

NOTHING_PERMITS = "nothing-permits"
EVALUATION_ERROR = "evaluation-error"
RESERVED = frozenset({NOTHING_PERMITS, EVALUATION_ERROR, SCOPES, CAPABILITIES, CEILING, ADMIN})
# What hooks and remote decision points are called by; a rule by such a name would pass for one of them.
RESERVED_PREFIXES = ("hook:", "authzen:")
# A misspelt annotation would turn an ask into an allow without a word, so unknown ones are mistakes.
ANNOTATIONS = ("id", "reason", "decision", *wants.ANNOTATIONS)
MOST_TOLD = 200
MOST_RULES = 20_000

# What rules that were read take in memory, roughly, in bytes: whoever may check policies chooses how long rules are.
_MOST_READ = 128 * 1024 * 1024
# Cedar's own idea of strings and comments, so that nothing hides in them; a carriage return ends a comment too. What is
# opened and never closed is taken whole: looked for again behind each quote, it would stop the process for hours.
_HIDDEN = r'//[^\r\n]*|"(?:\\.|[^"\\])*+(?:"|\\?\Z)'
_TOKEN = re.compile(rf"{_HIDDEN}|;", re.DOTALL)
_BETWEEN = re.compile(r"(?:\s++|//[^\r\n]*+)*+")
# Cedar's parser goes down a level for each of these and has no limit: 3,000 brackets end the process.
_LEVEL = re.compile(rf"{_HIDDEN}|[(\[{{]|[)\]}}]|&&|\|\||[.+*!-]|\bif\b", re.DOTALL)
_MOST_BRACKETS = 60
_MOST_LEVELS = 500
# Each level takes up to four of the 128 that the JSON of a rule may have: this many cannot be too many.
_SURELY_FLAT = 20
_LONGEST_RULE = 262_144
_TOO_DEEP = "is nested too deeply: split it into several rules or clauses, or list values as in [a, b].contains(c)"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}")
# Characters that make a text read otherwise than it is evaluated.
_DECEIVING = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
_LONGEST_REASON = 400
_KNOWN = ", ".join(f"@{name}" for name in ANNOTATIONS[:-1]) + f" and @{ANNOTATIONS[-1]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyFile:
    """A file of rules as its author wrote it; `path` is how answers name it."""

    path: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Mistake:
    """What is wrong with a policy, and where."""

    file: str
    line: int
    message: str

    def told(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "message": self.message}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Read:
    """What one rule's text says, wherever it stands."""

    id: str
    effect: Literal["permit", "forbid"]
    asks: bool
    wants: Wants
    reason: str
    ast: bytes
    action: Mapping[str, Any]
    resource: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyRule:
    """One rule where it stands. `ast` is Cedar's own JSON of it without annotations, ready to be part of a set;
    `action` and `resource` are the scopes that slices are cut by.
    """

    file: str
    line: int
    text: str
    read: _Read = field(repr=False)

    @property
    def id(self) -> str:
        return self.read.id

    @property
    def effect(self) -> Literal["permit", "forbid"]:
        return self.read.effect

    @property
    def asks(self) -> bool:
        return self.read.asks

    @property
    def wants(self) -> Wants:
        return self.read.wants

    @property
    def reason(self) -> str:
        return self.read.reason

    @property
    def ast(self) -> bytes:
        return self.read.ast

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def said(self) -> Rule:
        return Rule(id=self.id, where=self.where, reason=self.reason)

    @property
    def demand(self) -> Demand:
        """What has to be met before the call goes on, where the rule asks and spoke."""
        wanted = self.wants
        return Demand(
            rule=self.id, where=self.where, reason=self.reason, groups=wanted.groups, quorum=wanted.quorum,
            deadline_seconds=wanted.deadline_seconds, step_up=wanted.step_up,
        )  # fmt: skip


def parse(files: Sequence[PolicyFile]) -> tuple[PolicyRule, ...]:
    """All rules in the order of files and lines, or `PolicyInvalid` with every mistake of every file."""
    rules, mistakes = examine(files)
    if mistakes:
        raise refusal(mistakes)
    return rules


def examine(files: Sequence[PolicyFile]) -> tuple[tuple[PolicyRule, ...], tuple[Mistake, ...]]:
    """The rules that can be read, and what is wrong with the rest."""
    rules: list[PolicyRule] = []
    mistakes: list[Mistake] = []
    count = 0
    for file in files:
        mistakes += _deceptions(file)
        for line, text in pieces(file.text):
            count += 1
            if count > MOST_RULES:
                message = f"stands behind {MOST_RULES} rules, and a set holds no more"
                return tuple(rules), (*mistakes, Mistake(file=file.path, line=line, message=message))
            read = _read(text)
            if isinstance(read, _Read):
                rules.append(PolicyRule(file=file.path, line=line, text=text, read=read))
            else:
                mistakes += [Mistake(file=file.path, line=line, message=message) for message in read]
    return tuple(rules), (*mistakes, *_twice(rules), *_same_path(files))


def refusal(mistakes: Sequence[Mistake]) -> PolicyInvalid:
    first = mistakes[0]
    more = f", and {len(mistakes) - 1} more" if len(mistakes) > 1 else ""
    return PolicyInvalid(
        f"{first.file}:{first.line}: {first.message}{more}",
        details={"errors": [mistake.told() for mistake in mistakes[:MOST_TOLD]], "count": len(mistakes)},
    )


def set_digest(files: Iterable[PolicyFile]) -> str:
    """Names exactly these files: what a gateway has in force, and what the table of policies calls it."""
    return digest({"files": [{"path": file.path, "text": file.text} for file in files]})


def pieces(text: str) -> Iterator[tuple[int, str]]:
    """Each rule's first line and text, cut at the semicolons that stand outside strings and comments."""
    line, counted, start = 1, 0, _next(text, 0)
    for token in _TOKEN.finditer(text, start):
        if token[0] == ";":
            line, counted = line + text.count("\n", counted, start), start
            yield line, text[start : token.end()]
            start = _next(text, token.end())
    if start < len(text):
        yield line + text.count("\n", counted, start), text[start:]


def _next(text: str, at: int) -> int:
    """Where the next rule starts, past white space and comments."""
    between = _BETWEEN.match(text, at)
    return between.end() if between else at


def _read(text: str) -> "_Read | tuple[str, ...]":
    """Remembered by text, so that a changed set costs only its changed rules wherever it is read again."""
    known = _known.get(text)
    if known is None:
        known = _taken_apart(text)
        size = len(known.ast) if isinstance(known, _Read) else 0
        with _knowing:
            _known.keep(text, known, weight=1_000 + 4 * len(text) + size)
    return known


_known: "Kept[str, _Read | tuple[str, ...]]" = Kept(_MOST_READ)
# Policies are checked in threads.
_knowing = Lock()


def _taken_apart(text: str) -> "_Read | tuple[str, ...]":
    if len(text) > _LONGEST_RULE:
        return (f"takes {len(text)} characters of at most {_LONGEST_RULE}: split it into several rules",)
    levels = _levels(text)
    if levels > _MOST_LEVELS:
        return (_TOO_DEEP,)
    try:
        parsed = orjson.loads(cedarpy.policies_to_json_str(text))
    except ValueError as error:
        return (f"cannot be read as Cedar: {str(error).splitlines()[0]}",)
    if parsed["templates"]:
        return ("is a template, and templates are not taken: write the rule out with its principal and resource",)
    if len(parsed["staticPolicies"]) != 1:
        return ("holds no rule: a rule starts with permit or forbid",)
    (ast,) = parsed["staticPolicies"].values()
    marks = ast.pop("annotations", {})
    wrong = tuple(_annotation_mistakes(marks))
    if wrong:
        return wrong
    try:
        written = orjson.dumps(ast, option=orjson.OPT_SORT_KEYS)
        if levels > _SURELY_FLAT:
            cedarpy.PolicySet.from_json_str(as_set([(marks["id"], written)]))
    except (TypeError, ValueError):
        return (_TOO_DEEP,)  # the one thing that can be read as text and not as JSON
    return _Read(
        id=marks["id"], effect=ast["effect"], asks="decision" in marks, wants=wants_of(marks),
        reason=marks.get("reason") or "", ast=written, action=ast["action"], resource=ast["resource"],
    )  # fmt: skip


def _levels(text: str) -> int:
    """How far Cedar would go down, counted rather too high: what this refuses, nobody could read."""
    brackets = levels = 0
    for token in _LEVEL.finditer(text):
        sign = token[0][0]
        if sign in ")]}":
            brackets -= 1
        elif sign not in '"/':
            levels += 1  # an index is a bracket that closes at once and leads down all the same
            brackets += sign in "([{"
        if brackets > _MOST_BRACKETS:
            return _MOST_LEVELS + 1
        if levels > _MOST_LEVELS:
            return levels
    return levels


def as_set(rules: Iterable[tuple[str, bytes]]) -> str:
    """Cedar's JSON of a set of policies; ids are safe to stand in it as they are."""
    policies = ",".join(f'"{name}":{ast.decode()}' for name, ast in rules)
    return f'{{"templates":{{}},"templateLinks":[],"staticPolicies":{{{policies}}}}}'


def _annotation_mistakes(marks: Mapping[str, str | None]) -> Iterator[str]:
    name = marks.get("id")
    if not name:
        yield 'has no id: write @id("some-name") above it'
    elif not _ID.fullmatch(name):
        yield "has an id with other signs than letters, digits and _ . : / -, or one that is too long"
    elif name in RESERVED or name.startswith(RESERVED_PREFIXES):
        yield f"is called {name}, which is what the gateway itself says: choose another id"
    if "decision" in marks and marks["decision"] != "ask":
        yield 'has a @decision that is not "ask": leave it out where the rule allows or denies'
    if len(marks.get("reason") or "") > _LONGEST_REASON:
        yield f"has a reason of more than {_LONGEST_REASON} characters"
    yield from wants.mistakes(marks)
    for unknown in sorted(set(marks) - set(ANNOTATIONS)):
        yield f"carries @{unknown}, which means nothing here: there are {_KNOWN}"


def _deceptions(file: PolicyFile) -> Iterator[Mistake]:
    line, counted = 1, 0
    for found in islice(_DECEIVING.finditer(file.text), MOST_TOLD):
        line, counted = line + file.text.count("\n", counted, found.start()), found.start()
        message = (
            f"holds the invisible character U+{ord(found[0]):04X}, which can make a rule read otherwise than it acts"
        )
        yield Mistake(file=file.path, line=line, message=message)


def _twice(rules: Sequence[PolicyRule]) -> Iterator[Mistake]:
    first: dict[str, PolicyRule] = {}
    for rule in rules:
        before = first.setdefault(rule.id, rule)
        if before is not rule:
            message = f"has the id {rule.id}, which {before.where} has already"
            yield Mistake(file=rule.file, line=rule.line, message=message)


def _same_path(files: Sequence[PolicyFile]) -> Iterator[Mistake]:
    seen: set[str] = set()
    for file in files:
        if file.path in seen:
            yield Mistake(file=file.path, line=1, message="comes twice: each file has its own path")
        seen.add(file.path)
