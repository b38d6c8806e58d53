"""Find the fields of a document that look like an injection attempt, and name them.

Every call is looked at, so the first look is one pass over JSON that is at hand; only if it finds something, the texts
of the document are searched one by one. Callers and servers choose the size: of a document, the first 65,536 bytes
count.
"""

from collections.abc import Iterator
from typing import Any, Final

from deputize.core.injection.attack_patterns import ATTACK_PATTERNS, InjectionKind
from deputize.core.patterns import LinearPattern
from deputize.core.sensitive.text import redact_text
from deputize.core.value_types import frozen

# The number under which a suspicion is documented. It is a mark, not an error: no call fails for it.
SUSPICION_NUMBER: Final = "E3305"
MAX_SEARCHED_BYTES: Final = 65_536
MAX_SUSPICIONS: Final = 10
_MAX_NAME_LENGTH: Final = 64
_MAX_DEPTH: Final = 32
_PATTERNS: Final = {kind: LinearPattern(f"(?i:{pattern})") for kind, pattern in ATTACK_PATTERNS.items()}
# In JSON, a line break or a tab is a backslash and a letter.
_FIRST_LOOK: Final = LinearPattern(
    f"(?i:{'|'.join(ATTACK_PATTERNS.values())})".replace(r"\s", r"(?:\s|\\[nrtf])").replace(r"\b", r"(?:\b|\\[nrtf])")
)
_TITLES: Final = {
    InjectionKind.SQL: "SQL injection",
    InjectionKind.COMMAND: "command injection",
    InjectionKind.SCRIPT: "script injection",
    InjectionKind.PROMPT: "prompt injection",
}


@frozen
class Suspicion:
    """A field that looks like an injection attempt; `path` is a JSON pointer into the document."""

    kind: InjectionKind
    path: str

    def describe(self) -> str:
        """Describe it to a person."""
        return f"looks like {_TITLES[self.kind]} in {self.path or '/'}"

    @property
    def label(self) -> str:
        """The label by which policies know it, such as `suspected-sql-injection`."""
        return f"suspected-{self.kind}-injection"


def find_suspicions(document: Any, canonical: bytes) -> tuple[Suspicion, ...]:
    """Find what looks like an injection attempt in a document whose JSON is at hand; at most ten of them."""
    if not _FIRST_LOOK.matches_in_bytes(canonical[:MAX_SEARCHED_BYTES]):
        return ()
    suspicions: list[Suspicion] = []
    budget = MAX_SEARCHED_BYTES
    for path, text in _iterate_texts(document, "", _MAX_DEPTH):
        text = text[:budget]
        budget -= len(text)
        for kind, pattern in _PATTERNS.items():
            if pattern.matches_in(text):
                suspicions.append(Suspicion(kind=kind, path=path))
        if budget <= 0 or len(suspicions) >= MAX_SUSPICIONS:
            break
    return tuple(suspicions[:MAX_SUSPICIONS])


def _iterate_texts(value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield each text with its path. Callers choose names, so long ones are cut and secrets in them hidden."""
    if isinstance(value, str):
        yield path, value
    elif depth and isinstance(value, dict):
        for name, each in value.items():
            yield from _iterate_texts(each, f"{path}/{_format_name(name)}", depth - 1)
    elif depth and isinstance(value, list):
        for index, each in enumerate(value):
            yield from _iterate_texts(each, f"{path}/{index}", depth - 1)


def _format_name(name: str) -> str:
    visible_name = redact_text(name[:_MAX_NAME_LENGTH])
    return (visible_name + ("\u2026" if len(name) > _MAX_NAME_LENGTH else "")).replace("~", "~0").replace("/", "~1")
