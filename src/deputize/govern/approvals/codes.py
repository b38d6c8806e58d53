"""Codes of `deputize dev`: whoever reads the terminal it runs in is a person, and may decide.

Each open ticket has a code, made from a secret of this process that is kept nowhere. It is handed to `write`, which
writes it to the terminal, and to nothing else: no file, no log, no answer of ours holds one. An agent with a shell, a
token and our command line does not see it there, and guesses against a lock. In development only: elsewhere nobody
makes `Codes`.
"""

import hmac
from collections.abc import Callable
from dataclasses import field
from typing import Any

from deputize.core.caller import BREAK_GLASS_SCOPE, TERMINAL, Caller
from deputize.core.clock import Clock
from deputize.core.frozen import frozen
from deputize.govern.approvals.deciders import Deciding

MOST_WRONG_PER_TICKET = 5
MOST_WRONG_A_MINUTE = 20
LOCKED_SECONDS = 60.0
_SECRET_BYTES = 32
_MOST_REMEMBERED = 10_000
_LONGEST_TYPED = 64
# Crockford's base 32: no letter that looks like another or like a digit, and what people type instead of one.
_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_MISREAD = str.maketrans({"O": "0", "I": "1", "L": "1", "-": "", " ": ""})


@frozen
class Told:
    """What the terminal shows of a ticket."""

    ticket_id: str
    tenant: str
    tool: str
    user: str
    # Kept out of whatever shows a value of this, a traceback among them.
    code: str = field(repr=False)


class Codes:
    def __init__(self, clock: Clock, write: Callable[[Told], None]) -> None:
        self._clock = clock
        self._write = write
        self._secret = clock.random_bytes(_SECRET_BYTES)
        # The open tickets that were told, each with its binding; how often each one's code was used; wrong tries.
        self._told: dict[str, tuple[Told, bytes]] = {}
        self._used: dict[str, int] = {}
        self._wrong: dict[str, int] = {}
        self._locked: dict[str, float] = {}
        self._lately: list[float] = []
        self._all_locked = float("-inf")

    def tell(self, tenant: str, ticket_id: str, binding: bytes, tool: str, user: str) -> None:
        """Shows the code of a ticket."""
        told = Told(ticket_id=ticket_id, tenant=tenant, tool=tool, user=user, code=self._code(ticket_id, binding))
        self._told[ticket_id] = told, binding
        _forget_oldest(self._told)
        self._write(told)

    def tenant_of(self, ticket_id: str) -> str | None:
        """Whose ticket it is that was shown here."""
        known = self._told.get(ticket_id)
        return None if known is None else known[0].tenant

    def verify(self, ticket_id: str, binding: bytes, code: str) -> bool:
        """Whether this is the code of this ticket as it is now. After too many wrong ones nothing is, for a minute."""
        if self.locked_seconds(ticket_id) > 0:
            return False
        if hmac.compare_digest(_read(code), _read(self._code(ticket_id, binding))):
            self._wrong.pop(ticket_id, None)
            return True
        self._count_wrong(ticket_id)
        return False

    def locked_seconds(self, ticket_id: str) -> float:
        """How long no code of this ticket is taken; 0 if one is."""
        until = max(self._all_locked, self._locked.get(ticket_id, self._all_locked))
        return max(0.0, until - self._clock.monotonic())

    def spend(self, ticket_id: str) -> None:
        """A code decides once. Where more people are needed, the next one is shown: somebody may have looked over the
        shoulder of who typed the first.
        """
        self._used[ticket_id] = self._used.get(ticket_id, 0) + 1
        _forget_oldest(self._used)
        known = self._told.get(ticket_id)
        if known is not None:
            told, binding = known
            self.tell(told.tenant, ticket_id, binding, told.tool, told.user)

    def _code(self, ticket_id: str, binding: bytes) -> str:
        used = self._used.get(ticket_id, 0)
        made = hmac.digest(self._secret, f"{ticket_id}\0{used}\0".encode() + binding, "sha256")
        number = int.from_bytes(made[:5], "big")
        letters = "".join(_LETTERS[number >> shift & 31] for shift in range(35, -1, -5))
        return f"{letters[:4]}-{letters[4:]}"

    def _count_wrong(self, ticket_id: str) -> None:
        now = self._clock.monotonic()
        self._wrong[ticket_id] = self._wrong.get(ticket_id, 0) + 1
        _forget_oldest(self._wrong)
        if self._wrong[ticket_id] % MOST_WRONG_PER_TICKET == 0:
            self._locked[ticket_id] = now + LOCKED_SECONDS
            _forget_oldest(self._locked)
        self._lately = [at for at in self._lately if now - at < LOCKED_SECONDS] + [now]
        if len(self._lately) >= MOST_WRONG_A_MINUTE:
            self._all_locked, self._lately = now + LOCKED_SECONDS, []


def at_the_terminal(ticket: Deciding, *, now: int) -> Caller:
    """Whoever showed the right code: somebody of every group. Where more people are needed, who shows the next code is
    the next of them, so that one developer can see how a quorum goes.
    """
    before = sum(1 for vote in ticket.votes if vote.voter.partition(" ")[0] == TERMINAL)
    return Caller(
        tenant=ticket.tenant,
        user=f"{TERMINAL} {before + 1}" if before else TERMINAL,
        issuer=TERMINAL,
        human=True,
        console=True,
        only_decides=True,
        auth_time=now,
        issued_at=now,
        groups=frozenset(group for demand in ticket.asked.demands for group in demand.groups),
        methods=frozenset(demand.step_up for demand in ticket.asked.demands if demand.step_up),
        scopes=frozenset({BREAK_GLASS_SCOPE}),
    )


def _read(code: str) -> bytes:
    return code[:_LONGEST_TYPED].upper().translate(_MISREAD).encode(errors="replace")


def _forget_oldest(kept: dict[str, Any]) -> None:
    while len(kept) > _MOST_REMEMBERED:
        del kept[next(iter(kept))]
