"""Redact text that a tool or a server wrote: secrets that show by their shape, and paths of files.

Shapes cannot find every secret. What a schema marks as sensitive is therefore redacted by its value too
(`evidence/redact_free_text.py`), and so are issued credentials. All patterns are matched in linear time, because
servers choose the text.
"""

from collections.abc import Callable
from typing import Any, Final

from deputize.core.patterns import LinearPattern

REDACTION_MARK: Final = "[redacted]"
PATH_MARK: Final = "[path]"
# Longer text is cut before it is searched.
MAX_TEXT_LENGTH: Final = 16_384

_NAMES: Final = (
    r"pass(?:word|wd|phrase|code)s?|pwd|secrets?|(?:access|refresh|id|auth|bearer|session|api|csrf)?[_\- ]?tokens?"
    r"|(?:api|access|secret|private|signing|master|encryption)[_\- ]?keys?|apikey|credentials?|authorization|cookie"
)
# Each with what stands in its place.
_SECRETS: Final = tuple(
    (LinearPattern(pattern), replacement)
    for pattern, replacement in (
        (r"(?s)-----BEGIN [A-Z0-9 ]*-----.*?(?:-----END [A-Z0-9 ]*-----|$)", REDACTION_MARK),
        # The password, and the user beside it, in an address.
        (r"(?i)\b([a-z][a-z0-9+.\-]{0,30}://)[^\s/@'\"<>]+@", rf"\1{REDACTION_MARK}@"),
        (r"(?i)\b(bearer|basic|negotiate)\s+[A-Za-z0-9+/=._~\-]{8,}", rf"\1 {REDACTION_MARK}"),
        (r"\beyJ[A-Za-z0-9_\-]{6,}\.[A-Za-z0-9_\-]*(?:\.[A-Za-z0-9_\-]*)?", REDACTION_MARK),
        (
            r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\b(?:gh[pousr]_|github_pat_|glpat-|xox[a-z]-|sk-|sk_|rk_|pk_live_|AIza|hv[sbr]\."
            r"|npm_|pypi-|dop_v1_|shpat_|SG\.)[A-Za-z0-9_\-.]{12,}",
            REDACTION_MARK,
        ),
        # A value behind its name: password=…, "token": "…".
        (
            rf"(?i)((?:^|[^a-z])(?:{_NAMES})['\"]?\s*(?:=>|:=|=|:)\s*)"
            r"(?:\"[^\"]*(?:\"|$)|'[^']*(?:'|$)|`[^`]*(?:`|$)|[^\s,;&)\]}]+)",
            rf"\1{REDACTION_MARK}",
        ),
        # Without a sign between them only what no word looks like: in quotes, or with a digit or a symbol inside.
        (
            rf"(?i)((?:^|[^a-z])(?:{_NAMES})\s+(?:is\s+|was\s+)?)"
            r"(?:\"[^\"]*(?:\"|$)|'[^']*(?:'|$)|`[^`]*(?:`|$)|[a-z\-]*[^\sa-z\-.,:;!?()\[\]'\"`][^\s,;)\]}]*)",
            rf"\1{REDACTION_MARK}",
        ),
    )
)
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
# Not the path of an address such as https://api.example.com/v1, nor the slash of "and/or".
_ABSOLUTE_PATH: Final = LinearPattern(
    r"(^|[\s'\"`(\[{<=,;:|])(?:~|\.{1,2})?/(?:[^\s'\"`<>|,;:)\]}/][^\s'\"`<>|,;)\]}]*)"
)


def redact_secrets(text: str) -> str:
    """Replace what looks like a password, a token or a key."""
    text = text[:MAX_TEXT_LENGTH]
    for pattern, replacement in _SECRETS:
        text = pattern.replace_all(text, replacement)
    return text


def redact_error_text(text: str) -> str:
    """Replace what looks like a secret or like the path of a file."""
    text = redact_secrets(text)
    for pattern in _PATHS:
        text = pattern.replace_all(text, PATH_MARK)
    return _ABSOLUTE_PATH.replace_all(text, rf"\1{PATH_MARK}")


def redact_texts(value: Any, redact: Callable[[str], str] = redact_error_text) -> Any:
    """Redact each text in plain JSON, also the names of fields."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(str(name)): redact_texts(each, redact) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [redact_texts(each, redact) for each in value]
    return value
