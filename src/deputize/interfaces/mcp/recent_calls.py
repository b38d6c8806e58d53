"""Remember recent calls between requests, for convenience only; nothing breaks if they are forgotten.

Two things are remembered: whether a client of an earlier protocol version was shown the approval URL of a call, so that
it is shown once; and which pending call a request without a key made, so that repeating the request asks about that
call instead of making another. Both are bounded and end with the process: another gateway shows the URL again, or makes
a new call.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from deputize.core.caller import Caller
from deputize.core.canonical import NotCanonical, canonicalize
from deputize.core.clock import Clock

MAX_ENTRIES: Final = 10_000
_TTL_SECONDS: Final = 900.0


class RecentCalls:
    """The memory of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._approval_prompts: OrderedDict[str, None] = OrderedDict()
        self._pending: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        self._request_digests: dict[str, bytes] = {}

    def is_first_prompt(self, call_id: str) -> bool:
        """Tell whether the approval URL of a call was not shown yet, and remember that it is now."""
        if call_id in self._approval_prompts:
            return False
        self._approval_prompts[call_id] = None
        if len(self._approval_prompts) > MAX_ENTRIES:
            self._approval_prompts.popitem(last=False)
        return True

    def add_pending(self, caller: Caller, tool: str, arguments: Mapping[str, Any], call_id: str) -> None:
        """Remember the pending call that a request made."""
        key = _digest_request(caller, tool, arguments)
        if key is None:
            return
        previous_id, _ = self._pending.pop(key, ("", 0.0))
        self._request_digests.pop(previous_id, None)
        self._pending[key] = (call_id, self._clock.monotonic() + _TTL_SECONDS)
        self._request_digests[call_id] = key
        if len(self._pending) > MAX_ENTRIES:
            _, (oldest_id, _) = self._pending.popitem(last=False)
            self._request_digests.pop(oldest_id, None)

    def find_pending(self, caller: Caller, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """Find the pending call that the same request of the same caller made recently."""
        if not self._pending:
            return None
        key = _digest_request(caller, tool, arguments)
        call_id, until = self._pending.get(key, ("", 0.0)) if key is not None else ("", 0.0)
        return call_id if until > self._clock.monotonic() else None

    def forget_call(self, call_id: str) -> None:
        """Forget a call whose end the client knows: the same request makes a new call from now on."""
        key = self._request_digests.pop(call_id, None)
        if key is not None:
            self._pending.pop(key, None)


def _digest_request(caller: Caller, tool: str, arguments: Mapping[str, Any]) -> bytes | None:
    request = {"who": [caller.tenant, caller.issuer, *caller.subjects], "tool": tool, "arguments": dict(arguments)}
    try:
        return hashlib.sha256(canonicalize(request)).digest()
    except NotCanonical:
        return None
