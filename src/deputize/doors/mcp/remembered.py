"""What the door remembers between requests: little, and only for convenience. Losing it harms nobody.

Whether a client of the older era was shown where to approve a call, so that it is not sent there twice; and which
call a request without a key came to wait as, so that repeating the very same words asks about that call and makes no
second one. Both are bounded, and gone with the process: another gateway shows the address once more, or takes the call
anew.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from deputize.core.caller import Caller
from deputize.core.canonical import NotCanonical, canonical
from deputize.core.clock import Clock

MOST: Final = 10_000
_SECONDS: Final = 900.0


class Remembered:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shown: OrderedDict[str, None] = OrderedDict()
        self._waiting: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        self._words: dict[str, bytes] = {}

    def first_time(self, call_id: str) -> bool:
        """Whether nobody was sent to approve this call yet."""
        if call_id in self._shown:
            return False
        self._shown[call_id] = None
        if len(self._shown) > MOST:
            self._shown.popitem(last=False)
        return True

    def wait(self, caller: Caller, tool: str, arguments: Mapping[str, Any], call_id: str) -> None:
        key = _key(caller, tool, arguments)
        if key is None:
            return
        before, _ = self._waiting.pop(key, ("", 0.0))
        self._words.pop(before, None)
        self._waiting[key] = (call_id, self._clock.monotonic() + _SECONDS)
        self._words[call_id] = key
        if len(self._waiting) > MOST:
            _, (oldest, _) = self._waiting.popitem(last=False)
            self._words.pop(oldest, None)

    def waiting(self, caller: Caller, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """The call that the same request of the same caller came to wait as, a short while ago."""
        if not self._waiting:
            return None
        key = _key(caller, tool, arguments)
        call_id, until = self._waiting.get(key, ("", 0.0)) if key is not None else ("", 0.0)
        return call_id if until > self._clock.monotonic() else None

    def heard(self, call_id: str) -> None:
        """Its end was told, in whatever way: the same words from now on are a new call."""
        key = self._words.pop(call_id, None)
        if key is not None:
            self._waiting.pop(key, None)


def _key(caller: Caller, tool: str, arguments: Mapping[str, Any]) -> bytes | None:
    said = {"who": [caller.tenant, caller.issuer, *caller.subjects], "tool": tool, "arguments": dict(arguments)}
    try:
        return hashlib.sha256(canonical(said)).digest()
    except NotCanonical:
        return None
