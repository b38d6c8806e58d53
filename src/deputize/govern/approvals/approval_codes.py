"""Show approval codes in the terminal of `deputize dev`, and verify the codes that people type.

Reading that terminal proves that the approver is a person. Each open approval request has a code derived from a secret
that exists only in this process. The code goes to `write`, which prints it, and never to a file, a log or a response.
An agent with a shell, a token and the CLI cannot read it, and a lockout stops guessing. Used in development only, and
only while this process is the one development gateway of its database.
"""

import hmac
from collections.abc import Callable
from dataclasses import field
from typing import Any

from deputize.core.caller import BREAK_GLASS_SCOPE, TERMINAL_ISSUER, Caller
from deputize.core.clock import Clock
from deputize.core.value_types import frozen
from deputize.govern.approvals.approvers import OpenApproval
from deputize.govern.approvals.code_format import format_code, normalize_code

MAX_FAILURES_PER_APPROVAL = 5
MAX_FAILURES_PER_MINUTE = 20
LOCKOUT_SECONDS = 60.0
_SECRET_BYTES = 32
_MAX_ENTRIES = 10_000


@frozen
class ApprovalCode:
    """The code of an approval request, with what the terminal prints beside it."""

    approval_id: str
    tenant: str
    tool: str
    user: str
    # Not in the repr, so that no log and no traceback shows the code.
    code: str = field(repr=False)


class ApprovalCodes:
    """The approval codes of this process, with their use counts and lockouts."""

    def __init__(
        self, clock: Clock, write: Callable[[ApprovalCode], None], is_usable: Callable[[], bool] = lambda: True
    ) -> None:
        self._clock = clock
        self._write = write
        # False while this process may not be the only development gateway of its database.
        self._is_usable = is_usable
        self._secret = clock.random_bytes(_SECRET_BYTES)
        # By approval id: the code on show with the binding digest it was made for, uses, failed attempts, lockouts.
        self._codes: dict[str, tuple[ApprovalCode, bytes]] = {}
        self._use_counts: dict[str, int] = {}
        # By caller and approval id, so that no one locks a request for others; by caller alone for all requests.
        self._failures: dict[tuple[str, str], int] = {}
        self._locks: dict[tuple[str, str], float] = {}
        self._recent_failures: dict[str, list[float]] = {}
        self._caller_locks: dict[str, float] = {}

    def show_code(self, tenant: str, approval_id: str, binding_digest: bytes, tool: str, user: str) -> None:
        """Print the code of an approval request; not while codes are unusable, since then no code decides."""
        if not self._is_usable():
            return
        approval_code = ApprovalCode(
            approval_id=approval_id,
            tenant=tenant,
            tool=tool,
            user=user,
            code=self._compute_code(approval_id, binding_digest),
        )
        self._codes[approval_id] = approval_code, binding_digest
        _evict_oldest(self._codes)
        self._write(approval_code)

    def get_tenant(self, approval_id: str) -> str | None:
        """Return the tenant of an approval request whose code was shown here, or None."""
        entry = self._codes.get(approval_id)
        return None if entry is None else entry[0].tenant

    def verify_code(self, approval_id: str, binding_digest: bytes, code: str, *, caller: str = "") -> bool:
        """Tell whether this is the current code of the request. While the caller is locked out, every code fails."""
        if not self._is_usable():
            return False
        if self.get_lockout_seconds(approval_id, caller=caller) > 0:
            return False
        if hmac.compare_digest(normalize_code(code), normalize_code(self._compute_code(approval_id, binding_digest))):
            self._failures.pop((caller, approval_id), None)
            return True
        self._count_failure(caller, approval_id)
        return False

    def get_lockout_seconds(self, approval_id: str, *, caller: str = "") -> float:
        """Return the seconds until codes for this approval request are accepted again; 0 if they are now."""
        never = float("-inf")
        until = max(self._caller_locks.get(caller, never), self._locks.get((caller, approval_id), never))
        return max(0.0, until - self._clock.monotonic())

    def use_code(self, approval_id: str) -> None:
        """Invalidate a code after its decision, and show the next one in case the quorum needs more people.

        Each decision needs a new code, because another person may have seen the first one being typed.
        """
        self._use_counts[approval_id] = self._use_counts.get(approval_id, 0) + 1
        _evict_oldest(self._use_counts)
        entry = self._codes.get(approval_id)
        if entry is not None:
            approval_code, binding_digest = entry
            self.show_code(approval_code.tenant, approval_id, binding_digest, approval_code.tool, approval_code.user)

    def _compute_code(self, approval_id: str, binding_digest: bytes) -> str:
        use_count = self._use_counts.get(approval_id, 0)
        mac = hmac.digest(self._secret, f"{approval_id}\0{use_count}\0".encode() + binding_digest, "sha256")
        return format_code(mac)

    def _count_failure(self, caller: str, approval_id: str) -> None:
        now, key = self._clock.monotonic(), (caller, approval_id)
        self._failures[key] = self._failures.get(key, 0) + 1
        if self._failures[key] % MAX_FAILURES_PER_APPROVAL == 0:
            self._locks[key] = now + LOCKOUT_SECONDS
        recent = [at for at in self._recent_failures.get(caller, ()) if now - at < LOCKOUT_SECONDS] + [now]
        if len(recent) >= MAX_FAILURES_PER_MINUTE:
            self._caller_locks[caller], recent = now + LOCKOUT_SECONDS, []
        self._recent_failures[caller] = recent
        for entries in (self._failures, self._locks, self._recent_failures, self._caller_locks):
            _evict_oldest(entries)


def build_terminal_caller(approval: OpenApproval, *, now: int) -> Caller:
    """Build the caller for a person who typed the right code: a member of every approver group.

    Each further code counts as a further person, so that one developer can try out a quorum.
    """
    vote_count = sum(1 for vote in approval.votes if vote.voter.partition(" ")[0] == TERMINAL_ISSUER)
    return Caller(
        tenant=approval.tenant,
        user=f"{TERMINAL_ISSUER} {vote_count + 1}" if vote_count else TERMINAL_ISSUER,
        issuer=TERMINAL_ISSUER,
        human=True,
        console=True,
        only_decides=True,
        auth_time=now,
        issued_at=now,
        groups=frozenset(group for requirement in approval.plan.requirements for group in requirement.groups),
        methods=frozenset(requirement.step_up for requirement in approval.plan.requirements if requirement.step_up),
        scopes=frozenset({BREAK_GLASS_SCOPE}),
    )


def _evict_oldest(entries: dict[Any, Any]) -> None:
    while len(entries) > _MAX_ENTRIES:
        del entries[next(iter(entries))]
