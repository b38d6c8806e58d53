"""In development: whoever can read the terminal of `deputize dev` is the person who decides.

The issuer there is a key in a folder that agents can read too, so no token of it decides anything. `decide.py` compares
codes; here is what the terminal shows at the start, and who shows a code where no token came along.
"""

from collections.abc import Awaitable, Callable

from deputize.core.caller import ADMIN_SCOPE, TERMINAL, Caller
from deputize.core.errors import TicketNotFound
from deputize.lifecycle.approvals.decide import Approvals
from deputize.lifecycle.rooms import Rooms
from deputize.store.queries import load

_MOST_SHOWN = 50
_SQL = load("terminal")
ByCode = Callable[[str, str], Awaitable[Caller]]


async def tell_open(rooms: Rooms) -> None:
    """A gateway that starts has new codes for tickets of before: they are shown, the oldest first."""
    if rooms.codes is None:
        return
    async with rooms.store.writing() as connection:
        rows = await connection.fetch(_SQL["open_tickets"], _MOST_SHOWN)
    for row in reversed(rows):
        rooms.codes.tell(row["tenant"], str(row["id"]), bytes(row["binding"]), row["tool"], row["caller_user"])


def by_code(rooms: Rooms, approvals: Approvals, complete: Callable[[Caller], Awaitable[Caller]]) -> ByCode | None:
    """Who is at a browser that shows a ticket's code and no token; None where no codes are taken. The tenant is that of
    the ticket that was shown: nobody names one.
    """
    codes = rooms.codes
    if codes is None:
        return None

    async def shown(ticket_id: str, code: str) -> Caller:
        tenant = codes.tenant_of(ticket_id)
        if tenant is None:
            raise TicketNotFound("the terminal shows no ticket with this id")
        # Finds any ticket, and is told nothing of it: what comes back is a person, or a refusal on record.
        eye = Caller(tenant=tenant, user=TERMINAL, issuer=TERMINAL, scopes=frozenset({ADMIN_SCOPE}))
        return await approvals.at_terminal(await complete(eye), ticket_id, code)

    return shown
