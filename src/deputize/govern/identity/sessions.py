"""Seal console sessions into browser cookies: encrypted, authenticated and short-lived.

A session holds the result of a verified ID token, or of an approval code for one approval request. It is no token: what
it may do is what the console's pages offer, by the same methods of the gateway as REST. The server stores nothing, so
every gateway with the same master key can open it. `operations/approvals/console_sessions.py` checks revocations on
each use.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, cast
from uuid import UUID

import orjson

from deputize.core.caller import Caller, Trust, compute_decision_cache_key
from deputize.core.clock import Clock
from deputize.core.errors import UnsealFailed
from deputize.govern.identity.oidc_login import LOGIN_SECONDS, PendingLogin
from deputize.store.keys import KeySet

_FORMAT_VERSION = 1
_ID_BYTES = 16
_SESSION, _LOGIN = "session", "begun sign-in"


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsoleSession:
    """A person's console session. Forms must return `form_token`; `approval_id` limits it to one approval request."""

    caller: Caller
    form_token: str
    approval_id: str | None = None


class SessionSealer:
    """Seals and opens sessions and pending logins.

    `root` is a secret key. `issued_for` identifies the sign-in settings: after a change all sessions are invalid.
    """

    def __init__(self, root: bytes, clock: Clock, *, issued_for: str) -> None:
        # No tenant has an empty name, so no tenant's keys can open these cookies.
        self._keys = KeySet.from_data_keys("", {1: root}, clock)
        self._clock = clock
        self._issued_for = issued_for

    def seal_session(self, caller: Caller, *, approval_id: str | None = None) -> str:
        """Seal a session for a person, until the caller expires."""
        assert caller.console, "only a person who signed in to the console has a session"
        return self._seal_caller(caller, approval_id)

    def seal_link_session(self, caller: Caller) -> str:
        """Seal a session that decides no approval requests, for whoever opened the link that `deputize dev` shows."""
        assert not caller.console, "a link does not prove that a person signed in"
        return self._seal_caller(caller, None)

    def _seal_caller(self, caller: Caller, approval_id: str | None) -> str:
        return self._seal(
            _SESSION,
            {
                "v": _FORMAT_VERSION,
                "tenant": caller.tenant,
                "user": caller.user,
                "scopes": sorted(caller.scopes),
                "session": caller.session,
                "token_id": caller.token_id,
                "issuer": caller.issuer,
                "expires_at": caller.expires_at,
                "issued_at": caller.issued_at,
                "groups": sorted(caller.groups),
                "trust": caller.trust,
                "auth_time": caller.auth_time,
                "methods": sorted(caller.methods),
                "form_token": self._clock.random_bytes(24).hex(),
                "approval_id": approval_id,
                "decides": caller.console,
                "operator": caller.operator,
            },
        )

    def open_session(self, cookie: str) -> ConsoleSession | None:
        """Open a session cookie; return None if it is invalid or expired."""
        payload = self._open(_SESSION, cookie)
        if payload is None or payload["expires_at"] <= self._now():
            return None
        caller = Caller(
            tenant=payload["tenant"],
            user=payload["user"],
            scopes=frozenset(payload["scopes"]),
            session=payload["session"],
            token_id=payload["token_id"],
            issuer=payload["issuer"],
            expires_at=payload["expires_at"],
            issued_at=payload["issued_at"],
            groups=frozenset(payload["groups"]),
            trust=cast(Trust, payload["trust"]),
            auth_time=payload["auth_time"],
            methods=frozenset(payload["methods"]),
            # Sessions of the previous release have no such field: each belongs to a person.
            human=payload.get("decides", True),
            console=payload.get("decides", True),
            operator=payload.get("operator", False),
            # A code proves who decides one request, and no more.
            only_decides=payload["approval_id"] is not None,
        )
        caller = replace(caller, decision_cache_key=compute_decision_cache_key(caller))
        return ConsoleSession(caller=caller, form_token=payload["form_token"], approval_id=payload["approval_id"])

    def seal_login(self, login: PendingLogin, *, return_to: str) -> str:
        """Seal a pending login, with the page to return to."""
        return self._seal(_LOGIN, {"v": _FORMAT_VERSION, "begun": asdict(login), "to": return_to})

    def open_login(self, cookie: str) -> tuple[PendingLogin, str] | None:
        """Open a login cookie: the pending login and the page to return to; None if invalid or expired."""
        payload = self._open(_LOGIN, cookie)
        if payload is None or payload["begun"]["at"] + LOGIN_SECONDS <= self._now():
            return None
        return PendingLogin(**payload["begun"]), payload["to"]

    def _seal(self, kind: str, payload: Mapping[str, Any]) -> str:
        # Each cookie has a random name, and so a derived key of its own.
        name = self._clock.new_id()
        ciphertext = self._keys.seal(name, f"{kind}\0{self._issued_for}", orjson.dumps(payload))
        return base64.urlsafe_b64encode(UUID(name).bytes + ciphertext).rstrip(b"=").decode()

    def _open(self, kind: str, cookie: str) -> dict[str, Any] | None:
        try:
            raw = base64.b64decode(cookie + "=" * (-len(cookie) % 4), altchars=b"-_", validate=True)
            name = str(UUID(bytes=raw[:_ID_BYTES]))
            plaintext = self._keys.unseal(name, f"{kind}\0{self._issued_for}", raw[_ID_BYTES:])
        except (UnsealFailed, ValueError, IndexError, binascii.Error):
            return None
        payload: dict[str, Any] = orjson.loads(plaintext)
        return payload if payload["v"] == _FORMAT_VERSION else None

    def _now(self) -> float:
        return self._clock.epoch_ms() / 1000
