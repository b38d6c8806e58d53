"""Names that give a secret away: a value under one is never shown, stored or sent on, whatever its schema says."""

import re
from functools import lru_cache

_SENSITIVE_NAMES = frozenset(
    {
        "password", "passwords", "passwd", "pwd", "passphrase", "secret", "secrets", "client_secret", "secret_key",
        "access_key", "secret_access_key", "token", "access_token", "refresh_token", "id_token", "api_key", "api_keys",
        "apikey", "private_key", "authorization", "cookie", "set_cookie", "credential", "credentials", "credit_card",
        "card_number", "cvv", "cvc", "ssn", "social_security", "social_security_number", "pin", "otp",
    }
)  # fmt: skip
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@lru_cache(maxsize=4096)
def is_sensitive_name(name: str) -> bool:
    """Whether the name, or its last words, are those of a secret: `password`, `newPassword`, `x-api-key`."""
    words = _HUMP.sub("_", name).replace("-", "_").lower().split("_")
    return any("_".join(words[first:]) in _SENSITIVE_NAMES for first in range(len(words)))
