"""Find sentences in a declaration that address the model instead of describing a tool.

The patterns cover English phrases of published attacks and paths where secrets are stored. An attacker can write around
them; the protection then is that a pinned definition cannot change without review.
"""

import re
from base64 import b64decode
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Final
from unicodedata import normalize

from deputize.catalog.drift.hidden_characters import strip_hidden
from deputize.core.patterns import LinearPattern

_INJECTION_PHRASES: Final = (
    (
        r"(?:ignore|disregard|forget|override|bypass) (?:(?:all|any|every|the|your|of|these|those|my) ){0,3}"
        r"(?:previous|prior|preceding|above|earlier|other|existing|safety|system) ?"
        r"(?:instruction|rule|prompt|message|direction|command|guideline|polic|tool|context)",
        "tells the model to ignore its other instructions",
    ),
    (
        r"(?:do not|don't|dont|never|must not|should not|without|avoid) (?:\w+ ){0,2}"
        r"(?:tell|inform|mention|notify|reveal|alert|show|disclose)(?:ing)? (?:\S+ ){0,6}?"
        r"(?:user|human|person|anyone|anybody|people|operator|customer)",
        "tells the model to keep something from a person",
    ),
    (
        r"(?:before|prior to|after|instead of|rather than) (?:\w+ ){0,2}?"
        r"(?:using|calling|invoking|running|use|call|run) "
        r"(?:(?:any|all|every|the|of) ){0,3}(?:other|another) (?:\w+ )?tools?",
        "tells the model to prefer it over other tools",
    ),
    (
        r"(?:must|should|always|has to|needs to) (?:\w+ ){0,3}?(?:called?|used?|run|invoked?|executed?) (?:\S+ ){0,4}?"
        r"(?:before|instead of|prior to) (?:\w+ ){0,3}?(?:other|another|every|any|each) (?:\w+ )?"
        r"(?:tools?|answers?|response)",
        "tells the model to prefer it over other tools",
    ),
    (
        r"(?:do not|don't|never|stop) (?:use|call|using|calling|invoke|trust)(?:ing)? (?:any |the |all )?"
        r"(?:other|another) (?:\w+ )?(?:tool|server)",
        "tells the model not to use other tools",
    ),
    (
        r"(?:include|pass|copy|put|attach|append|paste|provide)\b[^.]{0,60}? "
        r"(?:entire|full|whole|complete|previous|current|system) (?:\w+ )?"
        r"(?:conversation|chat|prompt|messages|transcript)\b",
        "asks for the conversation or the prompt",
    ),
    (r"\bfrom now on\b|\byou are now\b", "assigns the model a new role"),
    (
        r"(?:takes? (?:precedence|priority) over|supersedes?|overrides?) (?:\w+ ){0,3}?"
        r"(?:instructions?|prompts?|guidelines|messages)\b",
        "claims priority over other instructions",
    ),
    (
        r"</?(?:important|instructions?|system_prompt|critical|priority|tool_call)\b[^>]{0,80}>|"
        r"</(?:system|assistant|user|developer)>|<\|[a-z_]{2,30}\|>|\[/?inst\]|<<sys>>",
        "uses tags that mark instructions to a model",
    ),
    (
        r"(?:~|/root|/home/[\w.-]+|\$home|%userprofile%)[/\\]\.(?:ssh|aws|gnupg|kube|cursor|claude|netrc|npmrc|env|"
        r"git-credentials|bash_history|azure)\b|\bid_(?:rsa|ed25519|ecdsa)\b|/etc/(?:passwd|shadow|sudoers)|"
        r"\.aws[/\\]credentials|\bauthorized_keys\b|\bmcp\.json\b|\b169\.254\.169\.254\b",
        "names a path or address where secrets are stored",
    ),
)
# Letters and digits of any script; the engine's own `\w` is ASCII.
_WORD: Final = r"0-9A-Za-z_\x{80}-\x{10ffff}"
# Servers choose the texts, so the patterns that are tried on them take linear time, whatever stands there.
_INJECTION_PATTERNS: Final = tuple(
    (LinearPattern(pattern.replace(r"[\w", f"[{_WORD}").replace(r"\w", f"[{_WORD}]"), ignore_case=True), what)
    for pattern, what in _INJECTION_PHRASES
)
_SPACES = re.compile(r"[\s*_`]+")
# Long enough for a sentence. Images, keys and tokens match too, but do not decode to a sentence.
_BASE64_TEXT = re.compile(r"[A-Za-z0-9+/_-]{24,8000}")
_MOST_BASE64: Final = 5
_SHORT_TEXT: Final = 200
_SHORTEST_BASE64: Final = 24
_SENTENCE: Final = LinearPattern(r"[A-Za-z]{2,}(?:[ ,.:;!?'\n]+[A-Za-z]{2,}){2,}")


def find_injections(text: str) -> Iterable[tuple[str, str]]:
    """Find each suspicious phrase with what it does; spacing, emphasis and hidden characters are ignored."""
    if text.isalnum() and len(text) < _SHORTEST_BASE64:
        return ()  # a single word, like most texts of a schema
    return _find_in_short_text(text) if len(text) <= _SHORT_TEXT else _iterate_injections(text)


@lru_cache(maxsize=8_192)
def _find_in_short_text(text: str) -> tuple[tuple[str, str], ...]:
    """Remember short texts: the operations of a service share most of theirs."""
    return tuple(_iterate_injections(text))


def _iterate_injections(text: str) -> Iterator[tuple[str, str]]:
    plain_text = _normalize_text(text)
    for pattern, what in _INJECTION_PATTERNS:
        # The original text is searched first, because `_` and `*` are not emphasis in tags, paths and names.
        for place in (text, plain_text) if plain_text != text else (text,):
            span = pattern.find_first(place)
            if span is not None:
                yield place[max(0, span[0] - 40) : span[1] + 40], what
                break
    for sentence in islice(_decode_sentences(text), _MOST_BASE64):
        yield sentence, "contains a sentence in base64, which models can read and people cannot"


def _decode_sentences(text: str) -> Iterator[str]:
    """Decode sentences written in base64."""
    for match in _BASE64_TEXT.finditer(text):
        base64_text = match[0].replace("-", "+").replace("_", "/")
        data = b64decode(base64_text[: len(base64_text) // 4 * 4])
        if data.isascii() and _SENTENCE.matches_in(sentence := data.decode("ascii")):
            yield sentence


def _normalize_text(text: str) -> str:
    return _SPACES.sub(" ", normalize("NFKC", strip_hidden(text)).replace("’", "'"))
