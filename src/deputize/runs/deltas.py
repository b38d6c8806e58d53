"""Compute deltas between two states: a program of copies and insertions over their bytes.

JSON is split at its commas and the pieces are matched with the older state, so the size of a delta follows the size of
the change. A delta reproduces the newer state exactly or fails, whatever the bytes mean. The window of zlib (32 KB) is
too short for this; the caller compresses the delta afterwards.
"""

from itertools import accumulate, pairwise

_SEPARATOR = b","
# A copy takes a few bytes to encode; shorter ones are not worth it.
_MIN_COPY_LENGTH = 12


class DeltaNotApplicable(ValueError):
    """The delta belongs to another state, or is damaged."""


def compute_delta(older: bytes, newer: bytes) -> bytes:
    """Compute what `apply_delta` needs to make the newer state from the older one."""
    old, new = older.split(_SEPARATOR), newer.split(_SEPARATOR)
    starts = list(accumulate((len(piece) + 1 for piece in old), initial=0))
    # Pairs are distinctive where single pieces (a zero, a brace) are everywhere; the first position of a pair counts.
    places = {pair: at for at, pair in reversed(list(enumerate(pairwise(old))))}
    program = bytearray()
    insertions: list[bytes] = []
    new_index, expected_at = 0, 0
    while new_index < len(new):
        at, length = _find_longest_match(old, new, new_index, expected_at, places)
        copy_length = starts[at + length] - starts[at] - 1 if length else 0
        if copy_length < _MIN_COPY_LENGTH:
            insertions.append(new[new_index])
            new_index += 1
            expected_at += 1
            continue
        _write_step(program, insertions, starts[at], copy_length)
        insertions = []
        new_index, expected_at = new_index + length, at + length
    if insertions or not program:
        _write_step(program, insertions, 0, 0)
    return bytes(program)


def _find_longest_match(
    old: list[bytes], new: list[bytes], new_index: int, expected_at: int, places: dict[tuple[bytes, bytes], int]
) -> tuple[int, int]:
    """Find the longest run of old pieces that equals the new ones from `new_index` on: position and length."""
    best = (0, 0)
    pair_at = places.get((new[new_index], new[new_index + 1])) if new_index + 1 < len(new) else None
    for at in dict.fromkeys((expected_at, pair_at)):
        if at is None or at >= len(old) or old[at] != new[new_index]:
            continue
        length = 1
        max_length = min(len(old) - at, len(new) - new_index)
        while length < max_length and old[at + length] == new[new_index + length]:
            length += 1
        if length > best[1]:
            best = (at, length)
    return best


def _write_step(program: bytearray, insertions: list[bytes], start: int, copy_length: int) -> None:
    """Write one step: the length of the inserted pieces plus one (0 for none), their bytes, then the copy."""
    text = _SEPARATOR.join(insertions)
    program += (
        _encode_varint(len(insertions) and len(text) + 1) + text + _encode_varint(start) + _encode_varint(copy_length)
    )


def apply_delta(older: bytes, program: bytes) -> bytes:
    """Rebuild the newer state."""
    parts: list[bytes] = []
    at = 0
    while at < len(program):
        size, at = _decode_varint(program, at)
        if size:
            parts.append(program[at : at + size - 1])
            at += size - 1
        start, at = _decode_varint(program, at)
        copy_length, at = _decode_varint(program, at)
        if start + copy_length > len(older):
            raise DeltaNotApplicable("the delta copies from beyond the older state")
        if copy_length:
            parts.append(older[start : start + copy_length])
    return _SEPARATOR.join(parts)


def _encode_varint(value: int) -> bytes:
    """Encode an integer as a varint: seven bits per byte, lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _decode_varint(program: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(program) and shift < 64:
        byte = program[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise DeltaNotApplicable("the delta ends in the middle of a number")
