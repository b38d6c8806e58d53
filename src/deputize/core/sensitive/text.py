"""Redact text: secrets and personal data that show by their shape, and paths of files.

This is the one engine for texts; documents with a schema are redacted by `evidence/redaction/`, which asks it for each
text. Shapes cannot find every secret, so what a schema marks as sensitive is also redacted by its value
(`evidence/redaction/free_text.py`), and so are issued credentials.

Callers and servers choose the text, so its size steers nothing: a first pattern tells in one pass whether anything can
be in the text at all, and only then it is searched in detail, up to a limit. What is past the limit is not shown.
"""

from collections.abc import Callable
from typing import Any, Final

from deputize.core.patterns import LinearPattern
from deputize.core.sensitive.known_paths import KnownPaths
from deputize.core.sensitive.marks import PATH_MARK, REDACTION_MARK
from deputize.core.sensitive.personal_data import DETECTORS, PERSONAL_HINTS
from deputize.core.sensitive.secret_formats import (
    ENTROPY_HINTS,
    FIRST_PASS,
    RANDOM_RUN,
    SECRET_HINTS,
    judge_random_run,
)

# Longer text is cut before it is searched in detail.
MAX_TEXT_LENGTH: Final = 16_384
# Characters of one document that are searched in detail.
MAX_DOCUMENT_LENGTH: Final = 262_144
# A cut may go through a number or a token whose rest would no longer be recognized.
_MARGIN: Final = 64
_SHORTEST_FINDING: Final = 6
# Rounds until nothing changes any more. One is usual: a replacement can make another shape visible.
_MAX_ROUNDS: Final = 4

# A password in an address has the @ that is a hint of personal data too.
_SECRET_HINTS: Final = LinearPattern(rf"{SECRET_HINTS}|{ENTROPY_HINTS}|://[^\s/@]+@")
_HINTS: Final = LinearPattern(f"{SECRET_HINTS}|{ENTROPY_HINTS}|{PERSONAL_HINTS}")
_PATHS: Final = tuple(
    LinearPattern(pattern)
    for pattern in (
        r"(?i)\bfile:/+[^\s'\"<>|,;)\]}]*",
        r"(?i)\b[a-z]:\\[^\s'\"<>|,;)\]}]*",
        r"\\\\[^\s'\"<>|,;)\]}]+",
        # Files of keys, also by a relative path.
        r"(?i)[\w.~/\\\-]+\.(?:pem|key|p12|pfx|jks|keystore|kdbx|ppk|env)\b|[\w.~/\\\-]*\bid_(?:rsa|dsa|ecdsa|ed25519)\b",
    )
)
_BEFORE_PATH: Final = frozenset("'\"`([{<=,;:|")
# Not the path of an address such as https://api.example.com/v1, nor the slash of "and/or".
_ABSOLUTE_PATH: Final = LinearPattern(
    r"(^|[\s'\"`(\[{<=,;:|])(?:~|\.{1,2})?/(?:[^\s'\"`<>|,;:)\]}/][^\s'\"`<>|,;)\]}]*)"
)


def may_hold_sensitive_text(body: bytes) -> bool:
    """Tell whether text or JSON in UTF-8 can hold anything that `redact_text` replaces."""
    return _HINTS.matches_in_bytes(body)


def may_hold_secret(text: str) -> bool:
    """Tell, by one look, whether a text can hold anything that `redact_secrets` replaces."""
    return len(text) >= _SHORTEST_FINDING and _SECRET_HINTS.matches_in_bytes(text.encode(errors="replace"))


def redact_text(text: str) -> str:
    """Replace secrets, and personal data with a structure."""
    return _redact_until_stable(text, _replace_all) if _has_hint(text) else text


def redact_secrets(text: str) -> str:
    """Replace secrets only, where personal data may be shown."""
    return _redact_until_stable(text, _replace_secrets) if may_hold_secret(text) else text


def redact_personal_data(text: str) -> str:
    """Replace personal data only, in ids that callers choose: those that are random would look like secrets."""
    # Most ids are one word with a small letter, and no number of a person or an account is: they are looked at in each
    # call.
    is_plain_id = text.replace("_", "").isalnum() and not (text.isupper() or text.isdigit())
    if is_plain_id or not _has_hint(text):
        return text
    return _redact_until_stable(text, _replace_personal_data)


def redact_error_text(text: str, known_paths: KnownPaths | None = None) -> str:
    """Replace secrets, personal data and paths of files, except for paths that the reader of the error knows."""
    return _redact_until_stable(text, lambda each: _replace_paths(_replace_all(each), known_paths))


def redact_texts(value: Any, redact: Callable[[str], str] = redact_error_text) -> Any:
    """Redact each text in plain JSON, also the names of fields."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(str(name)): redact_texts(each, redact) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [redact_texts(each, redact) for each in value]
    return value


class DocumentSearch:
    """The search of one document's texts, limited in total; past the limit, a text with any hint is hidden."""

    __slots__ = ("_budget", "_replace")

    def __init__(self) -> None:
        # Shared with the search of parts that may show personal data.
        self._budget = [MAX_DOCUMENT_LENGTH]
        self._replace = _replace_all

    def show_personal_data(self) -> "DocumentSearch":
        """Return the search of a part of the document in which only secrets are hidden."""
        search = DocumentSearch()
        search._budget, search._replace = self._budget, _replace_secrets
        return search

    def redact(self, text: str) -> str:
        """Return the text without what is hidden in this part of the document."""
        if not _has_hint(text):
            return text
        self._budget[0] -= min(len(text), MAX_TEXT_LENGTH)
        return REDACTION_MARK if self._budget[0] < 0 else _redact_until_stable(text, self._replace)


def _has_hint(text: str) -> bool:
    return len(text) >= _SHORTEST_FINDING and _HINTS.matches_in_bytes(text.encode(errors="replace"))


def _redact_until_stable(text: str, replace: Callable[[str], str]) -> str:
    """Replace until nothing changes, so that a text that was redacted once is the same when it is redacted again."""
    if len(text) > MAX_TEXT_LENGTH:
        # An approver of the text has to know that it is longer than what is shown.
        text = f"[part of {len(text):,} characters] {replace(text[:MAX_TEXT_LENGTH])[:-_MARGIN]}{REDACTION_MARK}"
    for _ in range(_MAX_ROUNDS):
        replaced_text = replace(text)
        if replaced_text == text:
            return text
        text = replaced_text
    return REDACTION_MARK


def _replace_secrets(text: str) -> str:
    for pattern, replacement in FIRST_PASS:
        text = pattern.replace_all(text, replacement)
    return RANDOM_RUN.replace_each(text, judge_random_run)


def _replace_personal_data(text: str) -> str:
    for pattern, judge in DETECTORS:
        text = pattern.replace_each(text, judge)
    return text


def _replace_all(text: str) -> str:
    for pattern, replacement in FIRST_PASS:
        text = pattern.replace_all(text, replacement)
    text = _replace_personal_data(text)
    return RANDOM_RUN.replace_each(text, judge_random_run)


def _replace_paths(text: str, known_paths: KnownPaths | None) -> str:
    if known_paths is None:
        for pattern in _PATHS:
            text = pattern.replace_all(text, PATH_MARK)
        return _ABSOLUTE_PATH.replace_all(text, rf"\1{PATH_MARK}")

    def judge(text: str, start: int, end: int) -> str | None:
        found = text[start:end]
        # The pattern of absolute paths finds what is before one, too.
        path = found[1:] if found[0] in _BEFORE_PATH or found[0].isspace() else found
        return None if known_paths.has(path) else found[: len(found) - len(path)] + PATH_MARK

    for pattern in (*_PATHS, _ABSOLUTE_PATH):
        text = pattern.replace_each(text, judge)
    return text
