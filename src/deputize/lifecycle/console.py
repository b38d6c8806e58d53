"""Who is at the browser: people sign in, stay signed in for a while, and are asked again whether they still may.

What was revoked since somebody signed in counts at once, as it does for a token. Above: `doors/console/`. Below:
`govern/identity` makes the caller and keeps the session in the browser's own cookie.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from deputize.core.caller import Caller
from deputize.core.errors import NoSuchRoute, SignInFailed
from deputize.core.settings import Settings
from deputize.govern.identity.sessions import Session, Sessions
from deputize.govern.identity.sign_in import SignIn
from deputize.lifecycle.approvals.terminal import ByCode
from deputize.lifecycle.rooms import Rooms

CALLBACK = "/console/callback"


class Console:
    """`by_code` says who shows the code of a ticket that the terminal shows; None where no codes are taken."""

    def __init__(
        self,
        rooms: Rooms,
        sessions: Sessions,
        sign_in: SignIn | None,
        by_code: ByCode | None,
        complete: Callable[[Caller], Awaitable[Caller]],
    ) -> None:
        self.base = base_of(rooms.settings) or ""
        self._rooms = rooms
        self._sessions = sessions
        self._sign_in = sign_in
        self._by_code = by_code
        self._complete = complete

    @property
    def origin(self) -> str:
        """Where forms of ours come from."""
        place = urlsplit(self.base)
        return f"{place.scheme}://{place.netloc}"

    @property
    def secure(self) -> bool:
        return self.base.startswith("https://")

    @property
    def takes_codes(self) -> bool:
        return self._by_code is not None

    @property
    def has_sign_in(self) -> bool:
        return self._sign_in is not None

    async def begin(self, *, to: str, again: bool = False, level: str = "") -> tuple[str, str]:
        """Where to send somebody who wants to get to `to`, and what their browser keeps meanwhile."""
        if self._sign_in is None:
            raise NoSuchRoute("nobody can sign in here")
        url, begun = await self._sign_in.begin(again=again, level=level)
        return url, self._sessions.seal_begun(begun, to=to)

    async def finish(self, kept: str, answer: Mapping[str, str]) -> tuple[str, str]:
        """The session of whoever came back, and where they wanted to go."""
        if self._sign_in is None:
            raise NoSuchRoute("nobody can sign in here")
        opened = self._sessions.open_begun(kept)
        if opened is None:
            raise SignInFailed("no sign-in was begun in this browser, or it took too long")
        begun, to = opened
        caller = await self._checked(await self._sign_in.finish(begun, answer))
        return self._sessions.seal(caller), to

    async def by_code(self, ticket_id: str, code: str) -> str:
        """The session of whoever can read the terminal, for this ticket and no other."""
        if self._by_code is None:
            raise NoSuchRoute("no codes are taken here")
        caller = await self._checked(await self._by_code(ticket_id, code))
        ends = self._rooms.clock.epoch_ms() // 1000 + self._rooms.settings.console.session_seconds
        return self._sessions.seal(replace(caller, expires_at=ends), ticket=ticket_id)

    async def session(self, kept: str) -> Session:
        """Who is signed in, unless that has ended or was revoked."""
        session = self._sessions.open(kept)
        if session is None or session.ticket is not None:
            raise SignInFailed("nobody is signed in here, or it was too long ago")
        return replace(session, caller=await self._checked(session.caller))

    async def by_ticket(self, opened: str, ticket_id: str) -> Session:
        """Who showed the code of this ticket."""
        session = self._sessions.open(opened)
        if session is None or session.ticket != ticket_id:
            raise SignInFailed(
                "no code was shown for this ticket, or it was too long ago",
                advice="Open the ticket again and type the code that the terminal shows for it.",
            )
        return replace(session, caller=await self._checked(session.caller))

    async def _checked(self, caller: Caller) -> Caller:
        (await self._rooms.authority.of(caller.tenant)).revocations.check(caller)
        return await self._complete(caller)


def base_of(settings: Settings) -> str | None:
    """Where people reach this gateway; the only address a link of ours begins with."""
    base = settings.approvals.console_url or settings.identity.public_url
    return None if base is None else base.rstrip("/")
