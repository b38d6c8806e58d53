"""Format the codes that the terminal of `deputize dev` shows, and normalize what people type."""

CODE_BYTES = 5
_MAX_CODE_LENGTH = 64
# Crockford's base 32, without characters that look alike, and the lookalikes that people may type instead.
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_LOOKALIKES = str.maketrans({"O": "0", "I": "1", "L": "1", "-": "", " ": ""})


def format_code(data: bytes) -> str:
    """Format the first five bytes as a code of two groups of four characters."""
    number = int.from_bytes(data[:CODE_BYTES], "big")
    characters = "".join(_ALPHABET[number >> shift & 31] for shift in range(35, -1, -5))
    return f"{characters[:4]}-{characters[4:]}"


def normalize_code(code: str) -> bytes:
    """Normalize a code that was typed, so that lower case, lookalikes and missing dashes do no harm."""
    return code[:_MAX_CODE_LENGTH].upper().translate(_LOOKALIKES).encode(errors="replace")
