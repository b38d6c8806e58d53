"""What changed between two states, as a program of copies and insertions over their bytes.

JSON is cut at its commas and the pieces are looked for in the older state, so that lists that grow and counters that
move cost what they changed. Bytes in, bytes out: a difference reproduces the newer state exactly or fails, whatever the
states mean. The window of zlib (32 KB) is too short for this; what is left over goes through it afterwards.
"""

from itertools import accumulate, pairwise

_SEPARATOR = b","
# A copy takes a few bytes to write down; shorter ones are not worth it.
_LEAST_COPY = 12


class NotApplicable(ValueError):
    """This difference was not made against this state, or is damaged."""


def difference(older: bytes, newer: bytes) -> bytes:
    """What `patched` needs to make the newer state from the older one."""
    old, new = older.split(_SEPARATOR), newer.split(_SEPARATOR)
    starts = list(accumulate((len(piece) + 1 for piece in old), initial=0))
    # Pairs tell places apart where single pieces (a zero, a brace) stand everywhere; the first place of a pair counts.
    places = {pair: at for at, pair in reversed(list(enumerate(pairwise(old))))}
    program = bytearray()
    inserted: list[bytes] = []
    here, expected = 0, 0
    while here < len(new):
        at, length = _longest(old, new, here, expected, places)
        copied = starts[at + length] - starts[at] - 1 if length else 0
        if copied < _LEAST_COPY:
            inserted.append(new[here])
            here += 1
            expected += 1
            continue
        _write(program, inserted, starts[at], copied)
        inserted = []
        here, expected = here + length, at + length
    if inserted or not program:
        _write(program, inserted, 0, 0)
    return bytes(program)


def _longest(
    old: list[bytes], new: list[bytes], here: int, expected: int, places: dict[tuple[bytes, bytes], int]
) -> tuple[int, int]:
    """Where the newer pieces from `here` on stand in the older ones: where they went on last, or where they begin."""
    best = (0, 0)
    found = places.get((new[here], new[here + 1])) if here + 1 < len(new) else None
    for at in dict.fromkeys((expected, found)):
        if at is None or at >= len(old) or old[at] != new[here]:
            continue
        length = 1
        most = min(len(old) - at, len(new) - here)
        while length < most and old[at + length] == new[here + length]:
            length += 1
        if length > best[1]:
            best = (at, length)
    return best


def _write(program: bytearray, inserted: list[bytes], start: int, copied: int) -> None:
    """One step: how many pieces come first (one more than none), their bytes, then what is copied behind them."""
    text = _SEPARATOR.join(inserted)
    program += _number(len(inserted) and len(text) + 1) + text + _number(start) + _number(copied)


def patched(older: bytes, program: bytes) -> bytes:
    """The newer state again."""
    parts: list[bytes] = []
    at = 0
    while at < len(program):
        size, at = _read(program, at)
        if size:
            parts.append(program[at : at + size - 1])
            at += size - 1
        start, at = _read(program, at)
        copied, at = _read(program, at)
        if start + copied > len(older):
            raise NotApplicable("a difference copies from beyond the state it was made against")
        if copied:
            parts.append(older[start : start + copied])
    return _SEPARATOR.join(parts)


def _number(value: int) -> bytes:
    """Seven bits to a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read(program: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(program) and shift < 64:
        byte = program[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise NotApplicable("a difference ends in the middle of a number")
