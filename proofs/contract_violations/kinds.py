"""Name the ways in which a tool can violate its contract."""

from enum import StrEnum


class ViolationKind(StrEnum):
    """What a tool does against its contract."""

    READ_THAT_WRITES = "read that writes"
    WRITE_WITHOUT_EFFECT = "write that does nothing"
    NOT_IDEMPOTENT = "not idempotent"
    NOT_REVERSIBLE = "not reversible"
    NOT_DETERMINISTIC = "not deterministic"
    WRONG_OUTPUT = "wrong output"
    WRONG_ERROR = "wrong error"
    TOO_SLOW = "slower than its class"
