"""Confirm administrative acts with codes that only the terminal of `deputize dev` shows.

The tokens of `deputize dev` prove nothing: their key is in a folder that agents can read too. So an act that loosens
authority needs the code that the terminal shows for exactly this act: same caller, command, subject and content. A code
is used once, expires after five minutes, and exists only in the memory of this process.
"""

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import field, replace
from typing import Literal

from deputize.core.caller import Caller
from deputize.core.canonical import canonicalize
from deputize.core.clock import Clock
from deputize.core.value_types import frozen
from deputize.govern.approvals.code_format import CODE_BYTES, format_code, normalize_code

CODE_SECONDS = 300.0
MAX_FAILURES = 5
MAX_FAILURES_PER_MINUTE = 20
LOCKOUT_SECONDS = 60.0
# More open codes than a person can tell apart are not shown; the oldest must expire first. Of one caller, so that an
# agent's requests do not keep its developer from confirming theirs; the total only bounds memory and the terminal.
MAX_OPEN_CODES = 20
MAX_OPEN_CODES_IN_TOTAL = 200
_MAX_CALLERS = 1000
CodeVerdict = Literal["accepted", "wrong", "locked"]


@frozen
class ProposedAct:
    """An administrative act that waits for its operator, with a digest of everything it would do."""

    tenant: str
    caller: str
    command: str
    subject: str
    digest: bytes

    @classmethod
    def propose(cls, caller: Caller, command: str, subject: str, content: str) -> "ProposedAct":
        """Bind an act to its caller, command, subject and content."""
        chain = [caller.issuer, caller.user, *caller.agents]
        binding = canonicalize([caller.tenant, chain, command, subject, content])
        return cls(
            tenant=caller.tenant,
            caller=caller.user,
            command=command,
            subject=subject,
            digest=hashlib.sha256(binding).digest(),
        )


@frozen
class DocumentChange:
    """A document that an act changes, such as a file of policies: its text before and after. None: there is none."""

    name: str
    old: str | None
    new: str | None


@frozen
class ConfirmationCode:
    """The code of a proposed act, with what the terminal prints beside it."""

    confirmation_id: str
    tenant: str
    caller: str
    command: str
    subject: str
    # Not in the repr, so that no log and no traceback shows the code.
    code: str = field(repr=False)
    changes: tuple[DocumentChange, ...] = field(default=(), repr=False)


ListChanges = Callable[[], tuple[DocumentChange, ...]]


class ConfirmationCodes:
    """The open codes of this process, with the failures and lockouts of each caller."""

    def __init__(
        self, clock: Clock, write: Callable[[ConfirmationCode], None], is_usable: Callable[[], bool] = lambda: True
    ) -> None:
        self._clock = clock
        self._write = write
        # False once this process is no longer the only development gateway of its database.
        self._is_usable = is_usable
        # By the act's digest: the code on show, and until when it is valid.
        self._codes: dict[bytes, tuple[ConfirmationCode, float]] = {}
        self._failures: dict[tuple[str, str], int] = {}
        self._locks: dict[tuple[str, str], float] = {}
        self._recent_failures: list[float] = []
        self._global_lock_until = float("-inf")

    def show_code(self, act: ProposedAct, list_changes: ListChanges | None = None) -> str | None:
        """Show the code of an act and what it changes, unless it is on show already.

        Return its id, or None if too many are open.
        """
        self._drop_expired()
        entry = self._codes.get(act.digest)
        if entry is not None:
            return entry[0].confirmation_id
        if not self._is_usable() or len(self._codes) >= MAX_OPEN_CODES_IN_TOTAL:
            return None
        open_codes = (code for code, _ in self._codes.values())
        if sum((code.tenant, code.caller) == (act.tenant, act.caller) for code in open_codes) >= MAX_OPEN_CODES:
            return None
        confirmation_code = ConfirmationCode(
            confirmation_id=self._clock.new_id(),
            tenant=act.tenant,
            caller=act.caller,
            command=act.command,
            subject=act.subject,
            code=format_code(self._clock.random_bytes(CODE_BYTES)),
        )
        self._codes[act.digest] = confirmation_code, self._clock.monotonic() + CODE_SECONDS
        # Only shown, not kept: the texts may be long.
        self._write(confirmation_code if list_changes is None else replace(confirmation_code, changes=list_changes()))
        return confirmation_code.confirmation_id

    def use_code(self, act: ProposedAct, code: str) -> CodeVerdict:
        """Use up the code of an act; each wrong code counts against its caller, and one of another act is void."""
        self._drop_expired()
        if self.get_lockout_seconds(act) > 0:
            return "locked"
        entry = self._codes.get(act.digest)
        if (
            entry is not None
            and self._is_usable()
            and hmac.compare_digest(normalize_code(code), normalize_code(entry[0].code))
        ):
            del self._codes[act.digest]
            self._failures.pop((act.tenant, act.caller), None)
            return "accepted"
        self._drop_exposed(code)
        self._count_failure(act)
        return "wrong"

    def get_lockout_seconds(self, act: ProposedAct) -> float:
        """Return the seconds until codes of this caller are accepted again; 0 if they are now."""
        until = max(self._global_lock_until, self._locks.get((act.tenant, act.caller), self._global_lock_until))
        return max(0.0, until - self._clock.monotonic())

    def _drop_expired(self) -> None:
        now = self._clock.monotonic()
        self._codes = {digest: entry for digest, entry in self._codes.items() if entry[1] > now}

    def _drop_exposed(self, code: str) -> None:
        """Drop the act that a code was meant for, if it was sent for another: others may have seen it being sent."""
        code_bytes = normalize_code(code)
        self._codes = {
            digest: entry
            for digest, entry in self._codes.items()
            if not hmac.compare_digest(code_bytes, normalize_code(entry[0].code))
        }

    def _count_failure(self, act: ProposedAct) -> None:
        now, key = self._clock.monotonic(), (act.tenant, act.caller)
        self._failures[key] = self._failures.get(key, 0) + 1
        if self._failures[key] % MAX_FAILURES == 0:
            self._locks[key] = now + LOCKOUT_SECONDS
        self._recent_failures = [at for at in self._recent_failures if now - at < LOCKOUT_SECONDS] + [now]
        if len(self._recent_failures) >= MAX_FAILURES_PER_MINUTE:
            self._global_lock_until, self._recent_failures = now + LOCKOUT_SECONDS, []
        for entries in (self._failures, self._locks):
            while len(entries) > _MAX_CALLERS:
                del entries[next(iter(entries))]
