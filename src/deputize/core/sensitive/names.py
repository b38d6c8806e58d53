"""Recognize names of secrets. Their values are never shown, stored or forwarded, whatever the schema says."""

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
# The longest of them, so that only the end of a longer name is read: names come from outside and may be megabytes.
_MAX_WORDS = max(name.count("_") + 1 for name in _SENSITIVE_NAMES)
_MAX_CACHED_LENGTH = 128
_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def is_sensitive_name(name: str) -> bool:
    """Tell whether a name, or its last words, name a secret: `password`, `newPassword`, `x-api-key`."""
    return _is_sensitive_ending(name[-_MAX_CACHED_LENGTH:])


@lru_cache(maxsize=4096)
def _is_sensitive_ending(name: str) -> bool:
    words = _CAMEL_CASE_BOUNDARY.sub("_", name).replace("-", "_").lower().split("_")[-_MAX_WORDS:]
    return any("_".join(words[first:]) in _SENSITIVE_NAMES for first in range(len(words)))
