"""Create a code for the person at this terminal to type, and compare what was typed."""

import hmac

from deputize.core.clock import Clock
from deputize.govern.approvals.code_format import CODE_BYTES, format_code, normalize_code


def create_code(clock: Clock) -> str:
    """Create a code that only readers of this terminal know."""
    return format_code(clock.random_bytes(CODE_BYTES))


def is_same_code(answer: str, code: str) -> bool:
    """Tell whether an answer is the code; lower case and a missing dash do no harm."""
    return hmac.compare_digest(normalize_code(answer), normalize_code(code))
