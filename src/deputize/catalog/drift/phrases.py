"""Sentences in a declaration that speak to the model instead of describing a tool.

Phrases of attacks that were published, in English, and places where secrets lie. Whoever writes around them is not
found here: what protects then is that a definition, once agreed to, does not change unseen. Above: `flags.py`.
"""

import re
from base64 import b64decode
from collections.abc import Iterator
from itertools import islice
from typing import Final
from unicodedata import normalize

from deputize.catalog.drift.hidden import without_hidden

_ORDERS: Final = (
    (
        r"(?:ignore|disregard|forget|override|bypass) (?:(?:all|any|every|the|your|of|these|those|my) ){0,3}"
        r"(?:previous|prior|preceding|above|earlier|other|existing|safety|system) ?"
        r"(?:instruction|rule|prompt|message|direction|command|guideline|polic|tool|context)",
        "tells the model what to make of its other instructions",
    ),
    (
        r"(?:do not|don't|dont|never|must not|should not|without|avoid) (?:\w+ ){0,2}"
        r"(?:tell|inform|mention|notify|reveal|alert|show|disclose)(?:ing)? (?:\S+ ){0,6}?"
        r"(?:user|human|person|anyone|anybody|people|operator|customer)",
        "asks for something to be kept from a person",
    ),
    (
        r"(?:before|prior to|after|instead of|rather than) (?:\w+ ){0,2}?"
        r"(?:using|calling|invoking|running|use|call|run) "
        r"(?:(?:any|all|every|the|of) ){0,3}(?:other|another) (?:\w+ )?tools?",
        "wants to come before other tools",
    ),
    (
        r"(?:must|should|always|has to|needs to) (?:\w+ ){0,3}?(?:called?|used?|run|invoked?|executed?) (?:\S+ ){0,4}?"
        r"(?:before|instead of|prior to) (?:\w+ ){0,3}?(?:other|another|every|any|each) (?:\w+ )?"
        r"(?:tools?|answers?|response)",
        "wants to come before other tools",
    ),
    (
        r"(?:do not|don't|never|stop) (?:use|call|using|calling|invoke|trust)(?:ing)? (?:any |the |all )?"
        r"(?:other|another) (?:\w+ )?(?:tool|server)",
        "speaks against other tools",
    ),
    (
        r"(?:include|pass|copy|put|attach|append|paste|provide)\b[^.]{0,60}? "
        r"(?:entire|full|whole|complete|previous|current|system) (?:\w+ )?"
        r"(?:conversation|chat|prompt|messages|transcript)\b",
        "asks for the conversation",
    ),
    (r"\bfrom now on\b|\byou are now\b", "tells the model what it is"),
    (
        r"(?:takes? (?:precedence|priority) over|supersedes?|overrides?) (?:\w+ ){0,3}?"
        r"(?:instructions?|prompts?|guidelines|messages)\b",
        "claims to come before other instructions",
    ),
    (
        r"</?(?:important|instructions?|system_prompt|critical|priority|tool_call)\b[^>]{0,80}>|"
        r"</(?:system|assistant|user|developer)>|<\|[a-z_]{2,30}\|>|\[/?inst\]|<<sys>>",
        "uses marks that set instructions apart for a model",
    ),
    (
        r"(?:~|/root|/home/[\w.-]+|\$home|%userprofile%)[/\\]\.(?:ssh|aws|gnupg|kube|cursor|claude|netrc|npmrc|env|"
        r"git-credentials|bash_history|azure)\b|\bid_(?:rsa|ed25519|ecdsa)\b|/etc/(?:passwd|shadow|sudoers)|"
        r"\.aws[/\\]credentials|\bauthorized_keys\b|\bmcp\.json\b|\b169\.254\.169\.254\b",
        "names a place where secrets lie",
    ),
)
_ORDERED: Final = tuple((re.compile(pattern, re.IGNORECASE), what) for pattern, what in _ORDERS)
_SPACES = re.compile(r"[\s*_`]+")
# Long enough for a sentence; pictures, keys and tokens are of such letters too, and decode to no sentence.
_ENCODED = re.compile(r"[A-Za-z0-9+/_-]{24,8000}")
_MOST_ENCODED: Final = 5
_SHORTEST_ENCODED: Final = 24
_SENTENCE = re.compile(r"[A-Za-z]{2,}(?:[ ,.:;!?'\n]+[A-Za-z]{2,}){2,}")


def orders(text: str) -> Iterator[tuple[str, str]]:
    """Each phrase as it would be read, and what it does. Spacing, emphasis and hidden characters do not part words."""
    if text.isalnum() and len(text) < _SHORTEST_ENCODED:
        return  # a word, as most texts of a schema are
    read = _read(text)
    for pattern, what in _ORDERED:
        # As it stands first: in marks, paths and names, `_` and `*` are no emphasis.
        found = pattern.search(text) or (pattern.search(read) if read != text else None)
        if found is not None:
            around = found.string[max(0, found.start() - 40) : found.end() + 40]
            yield around, what
    for said in islice(_encoded(text), _MOST_ENCODED):
        yield said, "holds a sentence in base64, which people do not read and models do"


def _encoded(text: str) -> Iterator[str]:
    """Sentences that are written in base64, as they would be read."""
    for found in _ENCODED.finditer(text):
        letters = found[0].replace("-", "+").replace("_", "/")
        decoded = b64decode(letters[: len(letters) // 4 * 4])
        if decoded.isascii() and _SENTENCE.search(said := decoded.decode("ascii")):
            yield said


def _read(text: str) -> str:
    return _SPACES.sub(" ", normalize("NFKC", without_hidden(text)).replace("’", "'"))
