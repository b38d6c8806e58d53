"""Recognize personal data with a structure: email addresses, cards, IBANs, social security and phone numbers, and IP
addresses.

A pattern finds candidates in linear time, and a judge decides by checksum, length and neighbors: ids, versions, times,
digests and sizes have to stay readable.
"""

import ipaddress
from collections.abc import Callable
from typing import Final

from deputize.core.patterns import LinearPattern
from deputize.core.sensitive.checksums import get_iban_length, is_card_number, is_iban, is_us_ssn
from deputize.core.sensitive.marks import (
    CARD_MARK,
    EMAIL_MARK,
    IBAN_MARK,
    IP_MARK,
    JSON_WORD_START,
    PHONE_MARK,
    SSN_MARK,
)

# A judge gets the text and where the candidate is, and returns what replaces it; None keeps it.
Judge = Callable[[str, int, int], str | None]

_EMAIL: Final = LinearPattern(
    r"[^\s@<>\"'`(),:;\[\]{}\\/=|&?]+@(?:[^\s@<>\"'`(),:;\[\]{}\\/=|.!?&#]+\.)+"
    r"(?:xn--[a-z0-9\-]+|[^\s@<>\"'`(),:;\[\]{}\\/=|.!?&#0-9_\-]{2,24})"
)
_IBAN: Final = LinearPattern(r"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b")
_CARD: Final = LinearPattern(
    r"\b(?:[0-9]{13,19}|[0-9]{4}[ \-][0-9]{4}[ \-][0-9]{4}[ \-][0-9]{1,4}(?:[ \-][0-9]{1,3})?"
    r"|[0-9]{4}[ \-][0-9]{6}[ \-][0-9]{4,5})\b"
)
_SSN: Final = LinearPattern(r"\b[0-9]{3}-[0-9]{2}-[0-9]{4}\b")
_NAMED_SSN: Final = LinearPattern(
    r"(?i)\b((?:ssn|social[ _\-]?security)(?:[ _\-]?(?:number|no|nr|#))?\.?[\s:=\"']{1,4}(?:is\s)?)"
    r"[0-9]{3}[ ]?[0-9]{2}[ ]?[0-9]{4}\b"
)
_PHONE: Final = LinearPattern(
    # International.
    r"\+[1-9](?:[ .\-]?[()]?[ ]?[0-9]){7,14}\b"
    # North American.
    r"|(?:\b1[ .\-])?\([2-9][0-9]{2}\)[ .\-]?[2-9][0-9]{2}[ .\-]?[0-9]{4}\b"
    r"|(?:\b1[\-.])?\b[2-9][0-9]{2}-[2-9][0-9]{2}-[0-9]{4}\b|(?:\b1[\-.])?\b[2-9][0-9]{2}\.[2-9][0-9]{2}\.[0-9]{4}\b"
    # National, with a zero for the trunk.
    r"|\b0[1-9](?:[ .\-][0-9]{2}){4}\b|\b0[1-9][0-9]{1,3}[ \-][0-9]{3,4}[ \-][0-9]{3,4}\b"
    r"|\(0[0-9]{1,4}\) ?[0-9]{3,4}[ \-]?[0-9]{3,5}\b|\b0[1-9][0-9]{1,3}/[0-9]{5,8}\b"
)
_NAMED_PHONE: Final = LinearPattern(
    r"(?i)\b((?:tele)?(?:phone|fax|tel|mobile|cell|whatsapp|sms)(?:[ _\-]?(?:phone|number|no|nr))?\.?"
    r"[\s:=\"']{1,4}(?:is\s)?)"
    r"[+(]?[0-9](?:[ ./()\-]{0,2}[0-9]){6,14}\b"
)
_IPV4: Final = LinearPattern(r"\b(?:[0-9]{1,3}\.){3}[0-9]{1,3}\b")
_IPV6: Final = LinearPattern(r"(?i)[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?:(?:[0-9]{1,3}\.){3}[0-9]{1,3})?")
PERSONAL_HINTS: Final = (
    r"@|[A-Z]{2}[0-9]{2} ?[A-Z0-9]{4} ?[A-Z0-9]{4}|[0-9]{13}|[0-9]{4}[ \-][0-9]{4}[ \-][0-9]{4}[ \-]"
    rf"|[0-9]{{4}}[ \-][0-9]{{6}}[ \-][0-9]{{4}}|{JSON_WORD_START}[0-9]{{3}}-[0-9]{{2}}-[0-9]{{4}}"
    r"|(?i:ssn|social.?security)"
    r"|\+[1-9][ .\-()]{0,3}[0-9]|\([02-9][0-9]{1,4}\)|[0-9]{3}[.\-][0-9]{3}[.\-][0-9]{4}"
    rf"|{JSON_WORD_START}0[1-9](?:(?:[ .\-][0-9]{{2}}){{4}}|[0-9]{{1,3}}(?:[ \-][0-9]{{3,4}}[ \-]|/)[0-9]{{3}})"
    r"|(?i:phone|fax|tel|mobile|cell|whatsapp|sms)[^0-9+(]{1,24}[+(]?[0-9]"
    r"|[0-9]\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]|::[0-9a-fA-F]|[0-9a-fA-F]::|(?i:(?:[0-9a-f]{1,4}:){3})"
)
_VERSION_WORDS: Final = ("v", "ver", "version", "versions", "release", "build", "python", "==", ">=", "<=", "~=", "!=")
_GLUE: Final = "-./_"
_TOOLS_BEFORE_AT: Final = ("git", "hg")


def _is_isolated(text: str, start: int, end: int) -> bool:
    """Tell whether a number stands alone, and is no part of an id, a version or another number."""
    before, after = text[max(0, start - 2) : start][::-1], text[end : end + 2]
    return not _is_glued(before) and not _is_glued(after)


def _is_glued(neighbors: str) -> bool:
    """Tell whether the next characters, nearest first, continue a word."""
    nearest, second = neighbors[:1] or " ", neighbors[1:] or " "
    return _is_word(nearest) or (nearest in _GLUE and _is_word(second))


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _keep_digits(text: str) -> str:
    return "".join(character for character in text if "0" <= character <= "9")


def _judge_email(text: str, start: int, end: int) -> str | None:
    return None if text[start:end].partition("@")[0].lower() in _TOOLS_BEFORE_AT else EMAIL_MARK


def _judge_iban(text: str, start: int, end: int) -> str | None:
    """Accept as many characters as an IBAN of the country has: the pattern may take words behind it."""
    length = get_iban_length(text[start : start + 2])
    place, compact = start, ""
    while length is not None and place < end and len(compact) < length:
        if text[place] != " ":
            compact += text[place]
        place += 1
    is_whole = place >= end or not _is_word(text[place])
    return IBAN_MARK + text[place:end] if is_whole and is_iban(compact) else None


def _judge_card(text: str, start: int, end: int) -> str | None:
    is_card = _is_isolated(text, start, end) and is_card_number(_keep_digits(text[start:end]))
    return CARD_MARK if is_card else None


def _judge_ssn(text: str, start: int, end: int) -> str | None:
    return SSN_MARK if _is_isolated(text, start, end) and is_us_ssn(_keep_digits(text[start:end])) else None


def _judge_named_ssn(text: str, start: int, end: int) -> str | None:
    first = _find_number(text, start, end)
    return text[start:first] + SSN_MARK if is_us_ssn(_keep_digits(text[first:end])) else None


def _judge_phone(text: str, start: int, end: int) -> str | None:
    count = len(_keep_digits(text[start:end]))
    return PHONE_MARK if 9 <= count <= 15 and _is_isolated(text, start, end) else None


def _judge_named_phone(text: str, start: int, end: int) -> str | None:
    first = _find_number(text, start, end)
    return text[start:first] + PHONE_MARK if _is_isolated(text, first, end) else None


def _find_number(text: str, start: int, end: int) -> int:
    return next(place for place in range(start, end) if text[place] in "+(0123456789")


def _judge_ipv4(text: str, start: int, end: int) -> str | None:
    if not _is_isolated_address(text, start, end):
        return None
    before = text[max(0, start - 12) : start].rstrip().lower()
    if before.endswith(_VERSION_WORDS) and not before.endswith(("dev", "driv")):
        return None
    try:
        address = ipaddress.IPv4Address(text[start:end])
    except ValueError:
        return None
    is_network = text[end : end + 1] == "/" and text[end + 1 : end + 2].isdigit() and text[start:end].endswith(".0")
    return None if _is_nobodys(address) or is_network else IP_MARK


def _is_isolated_address(text: str, start: int, end: int) -> bool:
    """Tell whether an address stands alone; a port or a prefix length may follow, and `//` may precede."""
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    if before[-1:] in ("-", ".", "_") or _is_word(before[-1:] or " "):
        return False
    if before[-1:] == "/" and before[:1] != "/":
        return False
    return not (_is_word(after[:1] or " ") or (after[:1] in ("-", ".", "_") and _is_word(after[1:] or " ")))


def _judge_ipv6(text: str, start: int, end: int) -> str | None:
    candidate = text[start:end]
    if len(candidate) < 4 or not _is_isolated(text, start, end):
        return None
    groups = [group for group in candidate.split(":") if group]
    if len(groups) < 3 and not any(character.isdigit() for character in candidate):
        return None
    try:
        address = ipaddress.IPv6Address(candidate)
    except ValueError:
        return None
    return None if _is_nobodys(address) else IP_MARK


def _is_nobodys(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Tell whether an address names no machine in particular: this one, none, or all."""
    return address.is_loopback or address.is_unspecified or str(address) == "255.255.255.255"


DETECTORS: Final[tuple[tuple[LinearPattern, Judge], ...]] = (
    (_EMAIL, _judge_email),
    (_IBAN, _judge_iban),
    (_CARD, _judge_card),
    (_NAMED_SSN, _judge_named_ssn),
    (_SSN, _judge_ssn),
    (_IPV6, _judge_ipv6),
    (_IPV4, _judge_ipv4),
    (_PHONE, _judge_phone),
    (_NAMED_PHONE, _judge_named_phone),
)
