"""Define what published injection attacks look like, by kind.

The texts are never changed, and no call is refused for one: data about attacks, and tools that take SQL, are ordinary.
So a pattern has to be something that hardly occurs otherwise. Each is a constant and takes linear time.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class InjectionKind(StrEnum):
    """What an injected text would be read as."""

    SQL = "sql"
    COMMAND = "command"
    SCRIPT = "script"
    PROMPT = "prompt"


_QUOTE: Final = r"\\?['\"]"
_PROGRAMS: Final = r"cat|rm|curl|wget|nc|ncat|bash|sh|zsh|chmod|sudo|powershell|cmd\.exe|python3?|perl"
# In JSON as in plain text: a quote may have a backslash before it.
ATTACK_PATTERNS: Final[Mapping[InjectionKind, str]] = {
    InjectionKind.SQL: "|".join(
        (
            r"\bunion\s+(?:all\s+|distinct\s+)?select\b",
            # ' OR '1'='1, ') or 1=1
            rf"{_QUOTE}\s*\)?\s*(?:or|and|\|\|)\s*\(?"
            rf"(?:{_QUOTE}\w{{0,32}}{_QUOTE}\s*(?:=|<|>|\blike\b)|\d{{1,9}}\s*(?:=|<|>)\s*\d)",
            r"\bor\s+1\s*=\s*1\b|\bor\s+true\s*(?:--|#|;)",
            # The end of a statement, and another one.
            rf"(?:{_QUOTE}|\)|\d)\s*;\s*(?:drop|delete|truncate|alter|insert|update|exec|shutdown|grant|create)\s+\w",
            rf"\w{_QUOTE}\s*(?:--|#|/\*)\s*(?:\"|$)",
            r"\b(?:pg_sleep|benchmark|load_file|extractvalue|updatexml)\s*\(|\bwaitfor\s+delay\b|\bxp_cmdshell\b",
            r"\binto\s+(?:out|dump)file\b",
        )
    ),
    InjectionKind.COMMAND: "|".join(
        (
            rf"(?:;|&&|\|\||\||\n|\\n)\s*(?:{_PROGRAMS})\s+(?:-\w|/|~|\.\.?/|https?://|\w+://)",
            rf"\$\(\s*(?:{_PROGRAMS}|id|whoami|uname|env|printenv)\b",
            r"(?:;|&&|\|\||\|)\s*(?:whoami|uname\s+-a|id)\s*(?:;|\"|$)",
            r"\brm\s+-[a-z]*r[a-z]*\s+(?:-\w+\s+)*[/~]|/etc/(?:passwd|shadow)\b|/dev/tcp/",
        )
    ),
    InjectionKind.SCRIPT: "|".join(
        (
            r"<\s*script(?:\s|>|/)|</\s*script\s*>|<\s*iframe\s",
            r"<\s*(?:svg|img|body|video|details)\s[^<>]{0,200}\bon[a-z]{3,20}\s*=",
            r"\bjavascript:\s*[a-z(]|\bdata:text/html|\bsrcdoc\s*=|\bdocument\.cookie\b",
            r"\$\{\s*(?:jndi|env|sys|lower|upper|java)\s*:|\{\{\s*(?:\d+\s*\*\s*\d+|config|self\.|request\.|''|\[\])",
        )
    ),
    InjectionKind.PROMPT: "|".join(
        (
            r"\b(?:ignore|disregard|forget|override|bypass)\s+(?:(?:all|any|every|the|your|of|these|those|my)\s+){0,3}"
            r"(?:previous|prior|preceding|above|earlier|existing|safety|system)\s+"
            r"(?:instruction|rule|prompt|message|direction|command|guideline|polic|context)",
            r"\b(?:do not|don't|never|without)\s+(?:tell|inform|mention|notify|alert|telling|informing|alerting)\s+"
            r"(?:\S+\s+){0,4}(?:user|human|operator)\b",
            r"\b(?:reveal|print|repeat|show|output|leak)\s+(?:\S+\s+){0,3}system\s+prompt\b",
            r"\byou\s+are\s+now\s+(?:in\s+)?(?:dan\b|developer\s+mode|jailbroken|an?\s+unrestricted|root\b)",
            r"<\|[a-z_]{2,30}\|>|\[/?inst\]|<<\s*sys\s*>>|</?(?:system_prompt|system|assistant|developer)\s*>",
        )
    ),
}
