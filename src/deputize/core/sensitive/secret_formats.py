"""Recognize secrets in text: formats of well-known services, values behind their names, and random strings.

Every pattern is a constant, limited in what it repeats, and matched in linear time, because callers and servers choose
the text.
"""

import math
from collections import Counter
from itertools import pairwise
from typing import Final

from deputize.core.patterns import LinearPattern
from deputize.core.sensitive.marks import JSON_SPACE, JSON_WORD_START, MARK_PATTERN, REDACTION_MARK

_NAMES: Final = (
    r"pass(?:word|wd|phrase|code)s?|pwd|secrets?|(?:access|refresh|id|auth|bearer|session|api|csrf)?[_\- ]?tokens?"
    r"|(?:api|access|secret|private|signing|master|encryption|account)[_\- ]?keys?|apikey|credentials?|authorization"
    r"|cookie"
)
_QUOTED: Final = r"\"[^\"]*(?:\"|$)|'[^']*(?:'|$)|`[^`]*(?:`|$)"
# Beginnings that services give to their tokens, so that leaks can be found.
_PREFIXES: Final = (
    r"gh[pousr]_|github_pat_|gl(?:pat|ptt|rt|dt|soat|cbt|agent|ft)-|xox[a-z]-|xapp-|sk-|sk_|rk_|pk_live_|whsec_|AIza"
    r"|GOCSPX-|ya29\.|1//0|hv[sbr]\.|npm_|pypi-|do[opr]_v1_|shp(?:at|ca|pa|ss|tka)_|SG\.|sq0[a-z]{3}-|hf_|lin_api_|ntn_"
    r"|PMAK-|dp\.(?:pt|st|ct|sa)\.|glsa_|glc_|NRAK-|ATATT3|ATCTT3|AGE-SECRET-KEY-1|pscale_(?:tkn|pw|oauth)_|sbp_|nf[pc]_"
    r"|dckr_(?:pat|oat)_|sntry[su]_|figd_|dapi|rubygems_|CFPAT-|EAAC|tfp_|ops_eyJ|doppler_|key-[0-9a-f]|round1\."
)
FIRST_PASS: Final = tuple(
    (LinearPattern(pattern), replacement)
    for pattern, replacement in (
        (r"(?s)-----BEGIN [A-Z0-9 ]{0,64}-----.*?(?:-----END [A-Z0-9 ]{0,64}-----|$)", REDACTION_MARK),
        # The password, and the user beside it, in an address.
        (r"(?i)\b([a-z][a-z0-9+.\-]{0,30}://)[^\s/@'\"<>\[\]]+@", rf"\1{REDACTION_MARK}@"),
        (r"(?i)\b(bearer|basic|negotiate)\s+[A-Za-z0-9+/=._~\-]{8,}", rf"\1 {REDACTION_MARK}"),
        (r"\beyJ[A-Za-z0-9_\-]{6,}\.[A-Za-z0-9_\-]*(?:\.[A-Za-z0-9_\-]*)?", REDACTION_MARK),
        (r"(?i)(https://hooks\.slack\.com/(?:services|workflows)/)[A-Za-z0-9/_\-]{8,}", rf"\1{REDACTION_MARK}"),
        (
            r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}|\bSK[0-9a-f]{32}\b|\b[0-9]{8,10}:AA[A-Za-z0-9_\-]{33}\b"
            rf"|\b[MNO][A-Za-z0-9_\-]{{23,27}}\.[A-Za-z0-9_\-]{{6}}\.[A-Za-z0-9_\-]{{27,}}"
            rf"|\b(?:{_PREFIXES})[A-Za-z0-9_\-.]{{12,}}",
            REDACTION_MARK,
        ),
        # A value behind its name: password=…, "token": "…".
        (
            rf"(?i)((?:^|[^a-z])(?:{_NAMES})\\?['\"]?\s*(?:=>|:=|=|:)\s*)"
            rf"(?:{MARK_PATTERN}|{_QUOTED}|[^\s,;&)\]}}]+)",
            rf"\1{REDACTION_MARK}",
        ),
        # Without a sign between them only what no word looks like: in quotes, or with a digit or a symbol inside.
        (
            rf"(?i)((?:^|[^a-z])(?:{_NAMES})\s+(?:is\s+|was\s+)?)"
            rf"(?:{_QUOTED}|[a-z\-]*[^\sa-z\-.,:;!?()\[\]'\"`][^\s,;)\]}}\[]*)",
            rf"\1{REDACTION_MARK}",
        ),
    )
)
# What of the above can stand in a text, as one pattern: a text without it holds none of them.
SECRET_HINTS: Final = (
    rf"-----BEGIN|(?i:bearer|basic|negotiate){JSON_SPACE}|eyJ|(?i:hooks\.slack\.com)|A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{{12}}"
    r"|SK[0-9a-f]{32}|[0-9]{8}:AA|[MNO][A-Za-z0-9_\-]{23,27}\.[A-Za-z0-9_\-]{6}\."
    rf"|{JSON_WORD_START}(?:{_PREFIXES})[A-Za-z0-9_\-.]{{12}}"
    r"|(?i:passw|passphrase|passcode|pwd|secret|token|apikey|credential|authorization|cookie"
    r"|(?:api|access|private|signing|master|encryption|account)[_\- ]?key)"
)

_SHORTEST_RUN: Final = 24
# Longer runs are files and other data, not keys.
_MAX_RUN_LENGTH: Final = 200
# An upper-case letter in a run of 24 characters has at least 12 of them on one of its sides.
ENTROPY_HINTS: Final = r"[A-Za-z0-9+/_\-]{12}[A-Z]|[A-Z][A-Za-z0-9+/_\-]{12}"
RANDOM_RUN: Final = LinearPattern(r"[A-Za-z0-9+/_\-]{24,}={0,2}")
_MIN_BITS: Final = 3.9
# Of two letters or digits beside each other in a random string, more than half are of different kinds.
_MIN_CHANGES: Final = 0.4
_DIGEST_PREFIXES: Final = ("sha1-", "sha256-", "sha384-", "sha512-")


def judge_random_run(text: str, start: int, end: int) -> str | None:
    """Return the mark for a run of characters that looks random; None if it is a name, a digest or data."""
    run = text[start:end].rstrip("=")
    if not _SHORTEST_RUN <= len(run) <= _MAX_RUN_LENGTH or run.startswith(_DIGEST_PREFIXES):
        return None
    kinds = [_classify(character) for character in run]
    counts = Counter(kinds)
    if not counts["u"] or not counts["l"] or counts["d"] < 2:
        return None
    pairs = [(first, second) for first, second in pairwise(kinds) if "s" not in (first, second)]
    changes = sum(first != second for first, second in pairs)
    if not pairs or changes < _MIN_CHANGES * len(pairs):
        return None
    return REDACTION_MARK if _compute_entropy(run) >= _MIN_BITS else None


def _classify(character: str) -> str:
    if character.isdigit():
        return "d"
    if character.isalpha():
        return "u" if character.isupper() else "l"
    return "s"


def _compute_entropy(run: str) -> float:
    """Compute how many bits each character of the run carries, by how often it occurs in it."""
    return -sum(count / len(run) * math.log2(count / len(run)) for count in Counter(run).values())
