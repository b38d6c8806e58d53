"""Sign people in to the console, and check at every request whether they still may use it.

A revocation counts at once, as it does for a token. `govern/identity` builds the caller and encrypts the session into
the browser's cookie.
"""

import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from deputize.core.caller import ADMIN_SCOPE, UNDO_SCOPE, Caller
from deputize.core.errors import NoSuchRoute, SignInFailed
from deputize.core.settings.urls import SIGN_IN_LINK_PATH, get_base_url
from deputize.govern.identity.dev_issuer import DEVELOPER, ISSUER
from deputize.govern.identity.oidc_login import LOGIN_SECONDS, OidcLogin
from deputize.govern.identity.sessions import ConsoleSession, SessionSealer
from deputize.lifecycle.runtime import Runtime
from deputize.operations.approvals.terminal_decisions import CodeVerifier

_LINK_BYTES: Final = 24
# As long as a working day: the link's session is an administrator's, but decides no approval requests.
_LINK_SESSION_SECONDS: Final = 43_200


class ConsoleAccess:
    """Console sessions; `verify_code` accepts the codes that `deputize dev` shows, and is None where there are none."""

    def __init__(
        self,
        runtime: Runtime,
        sessions: SessionSealer,
        sign_in: OidcLogin | None,
        verify_code: CodeVerifier | None,
        complete: Callable[[Caller], Awaitable[Caller]],
    ) -> None:
        self.base_url = get_base_url(runtime.settings) or ""
        self._runtime = runtime
        self._sessions = sessions
        self._sign_in = sign_in
        self._verify_code = verify_code
        self._complete = complete
        self._link_secret = ""
        self._show_link: Callable[[str], None] | None = None
        self._tour_file: Path | None = None

    @property
    def origin(self) -> str:
        """The origin that the console's own forms are sent from."""
        parts = urlsplit(self.base_url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def is_secure(self) -> bool:
        return self.base_url.startswith("https://")

    @property
    def accepts_codes(self) -> bool:
        return self._verify_code is not None

    @property
    def sign_in_seconds(self) -> int:
        """How long a sign-in may take before the person has to start again."""
        return LOGIN_SECONDS

    @property
    def has_sign_in(self) -> bool:
        return self._sign_in is not None

    async def begin_sign_in(self, *, return_to: str, force_login: bool = False, level: str = "") -> tuple[str, str]:
        """Return the URL to send the browser to, and the cookie that holds the sign-in's state meanwhile."""
        if self._sign_in is None:
            raise NoSuchRoute("sign-in is not configured on this gateway")
        url, sign_in_state = await self._sign_in.start_login(reauthenticate=force_login, acr=level)
        return url, self._sessions.seal_login(sign_in_state, return_to=return_to)

    async def finish_sign_in(self, cookie: str, answer: Mapping[str, str], *, address: str) -> tuple[str, str]:
        """Return the session cookie of the person who signed in, and the page to return to."""
        if self._sign_in is None:
            raise NoSuchRoute("sign-in is not configured on this gateway")
        unsealed_state = self._sessions.open_login(cookie)
        if unsealed_state is None:
            raise SignInFailed("no sign-in was started in this browser, or it took too long")
        sign_in_state, return_to = unsealed_state
        caller = await self._check_caller(await self._sign_in.finish_login(sign_in_state, answer, address=address))
        return self._sessions.seal_session(caller), return_to

    async def open_code_session(self, approval_id: str, code: str) -> str:
        """Return a session cookie for one approval request, for a person who knows the code in the terminal."""
        if self._verify_code is None:
            raise NoSuchRoute("this gateway accepts no terminal codes")
        caller = await self._check_caller(await self._verify_code(approval_id, code))
        expires_at = self._runtime.clock.epoch_ms() // 1000 + self._runtime.settings.console.session_seconds
        return self._sessions.seal_session(replace(caller, expires_at=expires_at), approval_id=approval_id)

    def offer_link(self, show_link: Callable[[str], None]) -> None:
        """Show a link that signs in once as administrator; after it was used, the next one. Only `deputize dev` offers
        links.

        The session has what the developer's token in the project has, which every program of that user can read: so it
        decides no approval requests.
        """
        self._show_link = show_link
        self._link_secret = self._runtime.clock.random_bytes(_LINK_BYTES).hex()
        show_link(f"{self.base_url}{SIGN_IN_LINK_PATH}?link={self._link_secret}")

    def follow_tour(self, file: Path) -> None:
        """Show on each page the station of a tour that is in this file, while there is one: see `deputize demo`."""
        self._tour_file = file

    @property
    def station(self) -> Mapping[str, Any] | None:
        """The station of the tour, if there is one."""
        try:
            return None if self._tour_file is None else orjson.loads(self._tour_file.read_bytes())
        except (OSError, ValueError):
            return None

    async def open_link_session(self, secret: str) -> tuple[str, int]:
        """Return the session cookie for the link that is shown now, and for how many seconds it is valid."""
        if self._show_link is None:
            raise NoSuchRoute("this gateway offers no sign-in links")
        if not hmac.compare_digest(secret.encode(), self._link_secret.encode()):
            raise SignInFailed(
                "this link was used before, or belongs to an earlier start",
                advice="Open the newest link in the terminal that runs deputize dev.",
            )
        self.offer_link(self._show_link)
        now = self._runtime.clock.epoch_ms() // 1000
        tenant = self._runtime.settings.tools.tenant
        caller = Caller(
            tenant=tenant,
            user=DEVELOPER,
            issuer=ISSUER,
            scopes=frozenset({ADMIN_SCOPE, UNDO_SCOPE}).union(await self._list_tool_scopes(tenant)),
            token_id=self._runtime.clock.new_id(),
            issued_at=now,
            expires_at=now + _LINK_SESSION_SECONDS,
        )
        return self._sessions.seal_link_session(await self._check_caller(caller)), _LINK_SESSION_SECONDS

    async def _list_tool_scopes(self, tenant: str) -> set[str]:
        tools = (await self._runtime.authority.load_tenant(tenant)).tools.tools
        versions = [each for entry in tools.values() for each in entry.by_version.values()]
        return {scope for each in versions for scope in (await each.load_tool()).contract.auth.required_scopes}

    async def load_session(self, cookie: str) -> ConsoleSession:
        """Load the session of a signed-in person; fail if it expired or was revoked."""
        session = self._sessions.open_session(cookie)
        if session is None or session.approval_id is not None:
            raise SignInFailed("you are not signed in, or your session has expired")
        return replace(session, caller=await self._check_caller(session.caller))

    async def load_code_session(self, cookie: str, approval_id: str) -> ConsoleSession:
        """Load the session of a person who entered the code of this approval request."""
        session = self._sessions.open_session(cookie)
        if session is None or session.approval_id != approval_id:
            raise SignInFailed(
                "no code was entered for this approval request, or the session has expired",
                advice="Open the approval request again and enter the code that the terminal shows for it.",
            )
        return replace(session, caller=await self._check_caller(session.caller))

    async def _check_caller(self, caller: Caller) -> Caller:
        self._runtime.request_slots.take_slot(caller)
        (await self._runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)
        return await self._complete(caller)
