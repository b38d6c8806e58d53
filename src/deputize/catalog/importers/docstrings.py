"""Docstrings in Google style, read for two things: what the function does, and what each argument means."""

import inspect
import re
from dataclasses import dataclass, field

_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Returns?|Raises|Yields?|Examples?|Notes?|Attributes|See Also|Warnings?):\s*"
)
_ARGUMENT = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")
_ARGUMENT_SECTIONS = frozenset({"Args", "Arguments", "Parameters"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Docstring:
    description: str = ""
    arguments: dict[str, str] = field(default_factory=dict)


def read_docstring(text: str | None) -> Docstring:
    """The words before the first section, and the entries of `Args:`."""
    if not text:
        return Docstring()
    sections: dict[str, list[str]] = {"": []}
    current = sections[""]
    for line in inspect.cleandoc(text).splitlines():
        head = _SECTION.fullmatch(line)
        if head:
            current = sections.setdefault(head[1], [])
        else:
            current.append(line)
    arguments: dict[str, str] = {}
    for name in _ARGUMENT_SECTIONS & sections.keys():
        arguments |= _arguments(sections[name])
    return Docstring(description=_paragraphs(sections[""]), arguments=arguments)


def _paragraphs(lines: list[str]) -> str:
    """Lines of one paragraph joined, paragraphs kept apart: wrapping was for an editor, not for readers."""
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines).strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _arguments(lines: list[str]) -> dict[str, str]:
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    found: dict[str, str] = {}
    name = ""
    for line in lines:
        entry = _ARGUMENT.fullmatch(line.strip())
        if entry and len(line) - len(line.lstrip()) == min(indents):
            name = entry[1]
            found[name] = entry[2]
        elif name and line.strip():
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found
