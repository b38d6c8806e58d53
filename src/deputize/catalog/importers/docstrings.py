"""Parse Google-style docstrings for the description of a function and of its arguments."""

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
    """The description of a function, and of its arguments by name."""

    description: str = ""
    arguments: dict[str, str] = field(default_factory=dict)


def parse_docstring(text: str | None) -> Docstring:
    """Parse the text before the first section as the description, and the entries of `Args:`."""
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
        arguments |= _parse_arguments(sections[name])
    return Docstring(description=_join_paragraphs(sections[""]), arguments=arguments)


def _join_paragraphs(lines: list[str]) -> str:
    """Join the wrapped lines of each paragraph, and separate paragraphs by an empty line."""
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines).strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _parse_arguments(lines: list[str]) -> dict[str, str]:
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    arguments: dict[str, str] = {}
    name = ""
    for line in lines:
        entry = _ARGUMENT.fullmatch(line.strip())
        if entry and len(line) - len(line.lstrip()) == min(indents):
            name = entry[1]
            arguments[name] = entry[2]
        elif name and line.strip():
            arguments[name] = f"{arguments[name]} {line.strip()}".strip()
    return arguments
