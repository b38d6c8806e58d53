"""Check numbers of payment cards, bank accounts and people for what their issuers guarantee."""

from typing import Final

# First digits and lengths of the card networks: (lowest prefix, highest prefix, lengths).
_CARD_RANGES: Final = (
    ("4", "4", (13, 16, 19)),
    ("51", "55", (16,)),
    ("2221", "2720", (16,)),
    ("34", "34", (15,)),
    ("37", "37", (15,)),
    ("300", "305", (14,)),
    ("36", "36", (14,)),
    ("38", "39", (14,)),
    ("3528", "3589", (16,)),
    ("6011", "6011", (16, 19)),
    ("644", "649", (16, 19)),
    ("65", "65", (16, 19)),
    ("62", "62", (16, 17, 18, 19)),
    ("2200", "2204", (16,)),
    ("5018", "5018", (13, 14, 15, 16, 17, 18, 19)),
    ("6304", "6304", (13, 14, 15, 16, 17, 18, 19)),
    ("6759", "6763", (13, 14, 15, 16, 17, 18, 19)),
)
# Lengths of IBANs by country, from the registry of ISO 13616.
_IBAN_LENGTHS: Final = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29,
    "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29,
    "ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28,
    "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28,
    "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MN": 20,
    "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29, "PT": 25,
    "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24, "SM": 27,
    "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20, "YE": 30,
}  # fmt: skip


def is_card_number(digits: str) -> bool:
    """Tell whether digits are the number of a payment card: network, length and Luhn's checksum."""
    is_known = any(len(digits) in lengths and low <= digits[: len(low)] <= high for low, high, lengths in _CARD_RANGES)
    return is_known and len(set(digits)) > 1 and _has_luhn_checksum(digits)


def _has_luhn_checksum(digits: str) -> bool:
    values = [int(digit) for digit in reversed(digits)]
    doubles = [value * 2 - 9 if value > 4 else value * 2 for value in values[1::2]]
    return (sum(values[::2]) + sum(doubles)) % 10 == 0


def get_iban_length(country: str) -> int | None:
    """Return how many characters an IBAN of this country has; None if the country has none."""
    return _IBAN_LENGTHS.get(country)


def is_iban(text: str) -> bool:
    """Tell whether letters and digits without spaces are an IBAN: length of the country, and checksum."""
    if _IBAN_LENGTHS.get(text[:2]) != len(text):
        return False
    return int("".join(str(int(character, 36)) for character in text[4:] + text[:4])) % 97 == 1


def is_us_ssn(digits: str) -> bool:
    """Tell whether nine digits can be a social security number of the United States."""
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    return area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"
