"""Make secrets and personal data that have never been anybody's, each of them once."""

import base64
import json
import random
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_ALPHANUMERIC: Final = string.ascii_letters + string.digits
_WORDS: Final = (
    "amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "heron", "islet", "jetty", "kelp", "lotus", "maple",
    "nectar", "onyx", "pine", "quartz", "raven", "sable", "tulip", "umber", "velvet", "willow", "yarrow", "zephyr",
)  # fmt: skip


class Marking(StrEnum):
    """How the gateway can know that a value is to be hidden."""

    MARKED = "marked"
    NAMED = "named"
    FORMAT = "format"
    PERSONAL = "personal"
    FREE = "free"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlantedValue:
    """A value, and the sentence that it stands in; `kind` is its format."""

    marking: Marking
    kind: str
    value: str
    sentence: str


class PlantedValues:
    """Makes values of every kind in turn, from one seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._number = 0

    def make(self, marking: Marking) -> PlantedValue:
        """Make the next value of this marking."""
        kinds = list(_KINDS[marking])
        kind = kinds[self._number % len(kinds)]
        self._number += 1
        value = _KINDS[marking][kind](self._rng)
        sentence = self._rng.choice(_FREE_SENTENCES if marking is Marking.FREE else _SENTENCES).format(value)
        return PlantedValue(marking=marking, kind=kind, value=value, sentence=sentence)


_SENTENCES: Final = (
    "{}",
    "please use {} for it",
    "Hello, it is {}, thanks.",
    "contact: {}",
    "(see {})",
    "first line\nvalue: {}\nlast line",
    '{{"kept": "{}"}}',
    "ref={} of 12 items",
)
_FREE_SENTENCES: Final = (
    "we agreed on {} on Monday",
    "{}",
    "log in with {} then restart",
    "the door opens with {} only",
    "my password is {}",
    "key: {}",
)


def _pick(rng: random.Random, alphabet: str, length: int) -> str:
    return "".join(rng.choices(alphabet, k=length))


def _pick_mixed(rng: random.Random, length: int) -> str:
    """Pick letters of both cases and digits, some of each."""
    return "aZ3" + _pick(rng, _ALPHANUMERIC, length - 3)


def _make_words(rng: random.Random) -> str:
    return " ".join(rng.choices(_WORDS, k=4)) + f" {rng.randrange(10**6):06d}"


def _make_quoted(rng: random.Random) -> str:
    """Make a text that JSON, URLs and logs spell in different ways."""
    return f'{_make_words(rng)} "ü/\\{_pick(rng, _ALPHANUMERIC, 8)}" & co'


def _make_jwt(rng: random.Random) -> str:
    claims = json.dumps({"sub": _pick(rng, string.ascii_lowercase, 12), "n": rng.randrange(10**9)}).encode()
    parts = (b'{"alg":"ES256"}', claims, rng.randbytes(48))
    return ".".join(base64.urlsafe_b64encode(each).decode().rstrip("=") for each in parts)


def _make_pem(rng: random.Random) -> str:
    body = base64.b64encode(rng.randbytes(48)).decode()
    return f"-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----"


def _make_card(rng: random.Random) -> str:
    prefix, length = rng.choice((("4", 16), ("53", 16), ("37", 15), ("6011", 16)))
    digits = prefix + _pick(rng, string.digits, length - len(prefix) - 1)
    total = sum(
        (value * 2 - 9 if value > 4 else value * 2) if index % 2 == 0 else value
        for index, value in enumerate(map(int, reversed(digits)))
    )
    digits += str(-total % 10)
    is_grouped = length == 16 and rng.random() < 0.5
    return " ".join(digits[first : first + 4] for first in range(0, 16, 4)) if is_grouped else digits


def _make_iban(rng: random.Random) -> str:
    country, length = rng.choice((("DE", 22), ("FR", 27), ("NL", 18), ("ES", 24), ("GB", 22)))
    account = _pick(rng, string.digits, length - 4)
    if country in ("NL", "GB"):
        account = _pick(rng, string.ascii_uppercase, 4) + account[4:]
    number = int("".join(str(int(character, 36)) for character in account + country + "00"))
    iban = f"{country}{98 - number % 97:02d}{account}"
    return iban if rng.random() < 0.5 else " ".join(iban[first : first + 4] for first in range(0, length, 4))


def _make_phone(rng: random.Random) -> str:
    last = f"{rng.randrange(10**4):04d}"
    return rng.choice(
        (
            f"+1 {rng.randrange(201, 989)} {rng.randrange(201, 989)} {last}",
            f"({rng.randrange(201, 989)}) {rng.randrange(201, 989)}-{last}",
            f"+49 {rng.randrange(151, 179)} {rng.randrange(1000, 9999)}{last}",
            f"+44 20 {rng.randrange(7000, 8999)} {last}",
            f"{rng.randrange(201, 989)}-{rng.randrange(201, 989)}-{last}",
        )
    )


def _make_email(rng: random.Random) -> str:
    name = f"{rng.choice(_WORDS)}{rng.choice(('.', '_', '+', ''))}{_pick(rng, string.ascii_lowercase, 8)}"
    return f"{name}@{rng.choice(('example.org', 'mail.example.co.uk', 'example.museum'))}"


def _make_ip(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return "2001:db8:" + ":".join(f"{rng.randrange(4096, 65536):x}" for _ in range(6))
    # Not 127, which is this machine.
    return ".".join(str(rng.randrange(128, 223)) for _ in range(4))


def _make_ssn(rng: random.Random) -> str:
    return f"{rng.randrange(100, 665)}-{rng.randrange(10, 99)}-{rng.randrange(1000, 9999)}"


def _prefix(text: str, length: int, alphabet: str = _ALPHANUMERIC) -> Callable[[random.Random], str]:
    return lambda rng: text + _pick(rng, alphabet, length)


_KINDS: Final[Mapping[Marking, Mapping[str, Callable[[random.Random], str]]]] = {
    Marking.MARKED: {"words": _make_words, "quoted": _make_quoted, "hexadecimal": _prefix("", 32, "0123456789abcdef")},
    Marking.NAMED: {"words": _make_words, "quoted": _make_quoted, "hexadecimal": _prefix("", 32, "0123456789abcdef")},
    # Put together, so that no scanner takes this file for one with secrets.
    Marking.FORMAT: {
        "aws": _prefix("AK" + "IA", 16, string.ascii_uppercase + string.digits),
        "github": _prefix("gh" + "p_", 36),
        "gitlab": _prefix("gl" + "pat-", 20),
        "slack": lambda rng: "xo" + f"xb-{_pick(rng, string.digits, 12)}-{_pick_mixed(rng, 24)}",
        "stripe": _prefix("sk" + "_live_", 24),
        "model": _prefix("sk" + "-ant-api03-", 40),
        "google": _prefix("AI" + "za", 35),
        "npm": _prefix("np" + "m_", 36),
        "jwt": _make_jwt,
        "pem": _make_pem,
        "bearer": lambda rng: f"Bearer {_pick_mixed(rng, 32)}",
        "url": lambda rng: f"postgresql://app:{_pick_mixed(rng, 16)}@db.example/shop",
        "assignment": lambda rng: f"password={_pick_mixed(rng, 16)}",
    },
    Marking.PERSONAL: {
        "email": _make_email, "card": _make_card, "iban": _make_iban, "phone": _make_phone, "ip": _make_ip,
        "ssn": _make_ssn,
    },
    Marking.FREE: {
        "random": lambda rng: _pick_mixed(rng, 40),
        "hexadecimal": _prefix("", 32, "0123456789abcdef"),
        "words": _make_words,
        "short": lambda rng: _pick_mixed(rng, 14) + "!",
        "digits": _prefix("7", 11, string.digits),
    },
}  # fmt: skip


def find_secret_part(value: PlantedValue) -> str:
    """Return what must not be found of a value: a scheme, a user or the name of a field may stay."""
    match value.kind:
        case "bearer":
            return value.value.removeprefix("Bearer ")
        case "url":
            return value.value.partition("app:")[2].partition("@")[0]
        case "assignment":
            return value.value.partition("=")[2]
        case "pem":
            return value.value.split("\n")[1]
        case _:
            return value.value
