"""Who is signed in, kept by their own browser: sealed, so that it can be neither read nor changed, and short-lived.

A session holds what a verified ID token said, or that a code of the terminal was shown for one ticket. Nothing of it is
written down here, so any gateway with the same master key knows it. Above: `lifecycle/console.py`, which asks what was
revoked since. Below: the same boxes that everything else is sealed in.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, cast
from uuid import UUID

import orjson

from deputize.core.caller import Caller, Trust, standing_of
from deputize.core.clock import Clock
from deputize.core.errors import SealBroken
from deputize.govern.identity.sign_in import BEGUN_SECONDS, Begun
from deputize.store.keys import KeySet

_FORM = 1
_ID_BYTES = 16
_SESSION, _BEGUN = "session", "begun sign-in"


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """Somebody at a browser. `form_token` comes back with every form they send; `ticket` is the only one this session
    is good for, where it is good for one only.
    """

    caller: Caller
    form_token: str
    ticket: str | None = None


class Sessions:
    """`root` is a secret; `issued_for` says whose sign-ins these are: once that is set otherwise, all have ended."""

    def __init__(self, root: bytes, clock: Clock, *, issued_for: str) -> None:
        # No tenant has this name, and none of their keys open these boxes.
        self._keys = KeySet.of("", {1: root}, clock)
        self._clock = clock
        self._issued_for = issued_for

    def seal(self, caller: Caller, *, ticket: str | None = None) -> str:
        """For a caller who is here in person, until the caller's own end."""
        assert caller.console, "only a person who signed in for deciding has a session"
        return self._seal(
            _SESSION,
            {
                "v": _FORM,
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
                "ticket": ticket,
            },
        )

    def open(self, sealed: str) -> Session | None:
        """The session, unless it is none of ours, or has ended."""
        told = self._open(_SESSION, sealed)
        if told is None or told["expires_at"] <= self._now():
            return None
        caller = Caller(
            tenant=told["tenant"],
            user=told["user"],
            scopes=frozenset(told["scopes"]),
            session=told["session"],
            token_id=told["token_id"],
            issuer=told["issuer"],
            expires_at=told["expires_at"],
            issued_at=told["issued_at"],
            groups=frozenset(told["groups"]),
            trust=cast(Trust, told["trust"]),
            auth_time=told["auth_time"],
            methods=frozenset(told["methods"]),
            human=True,
            console=True,
            only_decides=True,
        )
        caller = replace(caller, standing=standing_of(caller))
        return Session(caller=caller, form_token=told["form_token"], ticket=told["ticket"])

    def seal_begun(self, begun: Begun, *, to: str) -> str:
        return self._seal(_BEGUN, {"v": _FORM, "begun": asdict(begun), "to": to})

    def open_begun(self, sealed: str) -> tuple[Begun, str] | None:
        """What was begun in this browser, and where it should lead."""
        told = self._open(_BEGUN, sealed)
        if told is None or told["begun"]["at"] + BEGUN_SECONDS <= self._now():
            return None
        return Begun(**told["begun"]), told["to"]

    def _seal(self, kind: str, told: Mapping[str, Any]) -> str:
        # Each has a name of its own, and so a key of its own.
        name = self._clock.new_id()
        box = self._keys.seal(name, f"{kind}\0{self._issued_for}", orjson.dumps(told))
        return base64.urlsafe_b64encode(UUID(name).bytes + box).rstrip(b"=").decode()

    def _open(self, kind: str, sealed: str) -> dict[str, Any] | None:
        try:
            raw = base64.b64decode(sealed + "=" * (-len(sealed) % 4), altchars=b"-_", validate=True)
            name = str(UUID(bytes=raw[:_ID_BYTES]))
            opened = self._keys.open(name, f"{kind}\0{self._issued_for}", raw[_ID_BYTES:])
        except (SealBroken, ValueError, IndexError, binascii.Error):
            return None
        told: dict[str, Any] = orjson.loads(opened)
        return told if told["v"] == _FORM else None

    def _now(self) -> float:
        return self._clock.epoch_ms() / 1000
