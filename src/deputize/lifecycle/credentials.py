"""What a tool acts with: one credential per attempt, had just in time and closed when the attempt ends.

    credential: none        nothing is fetched
    credential: vault       the tenant's secret of the contract's name, from the vault of the settings
    credential: delegated   a token minted for the contract's audience, where this gateway mints any
    credential: link        a token of the user's own account at the server that the tool is of
    credential: client      a token of this gateway's own account there

A preview gets less: the secret that the contract calls read-only, or a token of the scopes that only read; or nothing.

All of it stands between the claim and the effect, so a credential that cannot be had proves that nothing happened.
Values that were lent are remembered until their call is settled: an answer that quotes one is held back.
"""

import base64
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote, quote_plus

import orjson

from deputize.core.canonical import canonical
from deputize.core.definition import Secret, Told
from deputize.core.errors import CredentialExpired, CredentialMissing, CredentialQuoted, Problem
from deputize.core.outcome import Result
from deputize.govern.identity.credentials import reading
from deputize.govern.vault.port import Vault
from deputize.lifecycle.phases import Authorized, Verified

# Mints a token on the call's authority: (authorized, call id, seconds it must live, scopes).
Mint = Callable[[Authorized, str, float, tuple[str, ...]], Awaitable[Secret]]


class SignedIn(Protocol):
    """Tokens of servers that want a sign-in, for the caller of one call."""

    async def token(self, authorized: Authorized, seconds: float) -> Secret: ...

    async def turned_away(self, authorized: Authorized, token: str, refused: CredentialExpired) -> None: ...


_HELD_BACK = "the tool's own words are held back: they quote its credential"


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    vault: Vault
    mint: Mint | None = None
    # Of servers that want a sign-in; None where there are none.
    signed_in: SignedIn | None = None
    # By the id of the request, the spellings of what was lent to it.
    _lent: dict[str, set[bytes]] = field(default_factory=dict, repr=False)

    async def for_attempt(self, authorized: Authorized, call_id: str, seconds: float) -> Secret | None:
        """The credential the contract asks for, for at most so many seconds; whoever asked closes it."""
        kind = authorized.validated.tool.contract.auth.credential
        if kind == "none":
            return None
        auth = authorized.validated.tool.contract.auth
        try:
            if kind == "vault":
                secret = await self._from_vault(authorized, auth.secret, seconds)
            elif kind != "delegated":
                secret = await self._signed_in(authorized).token(authorized, seconds)
            else:
                secret = await self._minted(authorized, call_id, seconds, auth.scopes)
        except Problem as problem:
            problem.nothing_happened = True
            raise
        self._lent.setdefault(authorized.validated.received.call_id, set()).update(spellings(secret.reveal()))
        return secret

    async def turned_away(self, authorized: Authorized, secret: Secret, refused: CredentialExpired) -> None:
        """Whoever the credential was shown to did not take it: raises what there is to do, if somebody can do it."""
        if authorized.validated.tool.contract.auth.credential in ("link", "client"):
            await self._signed_in(authorized).turned_away(authorized, secret.reveal(), refused)

    async def for_preview(self, authorized: Authorized, seconds: float) -> Secret | None:
        """What a look at the world may be had with, and nothing that could change it. Whoever asked closes it, and
        keeps what it says of the credential to itself: nothing is remembered here.
        """
        contract = authorized.validated.tool.contract
        auth, call_id = contract.auth, authorized.validated.received.call_id
        if auth.credential == "vault" and auth.readonly_secret is not None:
            return await self._from_vault(authorized, auth.readonly_secret, seconds)
        if auth.credential == "delegated" and (scopes := reading(contract)):
            return await self._minted(authorized, call_id, seconds, scopes)
        return None

    def _signed_in(self, authorized: Authorized) -> SignedIn:
        if self.signed_in is None:
            raise CredentialMissing(f"{authorized.validated.tool.name} is of no server that is signed in to here")
        return self.signed_in

    async def _from_vault(self, authorized: Authorized, name: str | None, seconds: float) -> Secret:
        if name is None:
            raise CredentialMissing(f"{authorized.validated.tool.name} asks for a secret and names none")
        tenant = authorized.validated.received.caller.tenant
        return await self.vault.fetch(tenant, name, seconds=seconds)

    async def _minted(self, authorized: Authorized, call_id: str, seconds: float, scopes: tuple[str, ...]) -> Secret:
        if self.mint is None:
            raise CredentialMissing(
                "this gateway mints no tokens, and the tool acts with nothing else",
                advice="Whoever runs this gateway must set identity.public_url.",
            )
        return await self.mint(authorized, call_id, seconds, scopes)

    def forget(self, authorized: Authorized) -> None:
        """The call is settled, or nobody waits for it any more."""
        self._lent.pop(authorized.validated.received.call_id, None)

    def discreet(self, authorized: Authorized, tell: Callable[[Told], None] | None) -> Callable[[Told], None] | None:
        """The same for what is told on the way: what would tell a credential is told to nobody."""
        if tell is None:
            return None
        call_id = authorized.validated.received.call_id

        def told_without(told: Told) -> None:
            lent = self._lent.get(call_id) or set()
            if not quotes(_joined((told.message,)), lent) and not quotes(told.partial or b"", lent):
                tell(told)

        return told_without

    def unquoted(self, verified: Verified) -> Verified:
        """The same, unless it would tell a credential: a result is refused, an error loses its words."""
        lent = self._lent.get(verified.executed.authorized.validated.received.call_id)
        if not lent:
            return verified
        problem = verified.problem
        if problem is not None:
            hold_back(problem, lent)
            return verified
        if not quotes(verified.canonical, lent) and not quotes(_described(verified.said), lent):
            return verified
        tool = verified.executed.authorized.validated.tool.name
        return Verified(
            executed=verified.executed,
            problem=CredentialQuoted(f"the result of {tool} quotes the credential it was given"),
        )


def hold_back(problem: Problem, lent: set[bytes]) -> None:
    """Takes its own words from a problem that would tell a credential."""
    if quotes(_words(problem), lent):
        problem.message, problem.args, problem.advice = _HELD_BACK, (_HELD_BACK,), problem.face.advice
        problem.details = {} if quotes(_joined(_texts(problem.details)), lent) else problem.details


def quotes(said: bytes, lent: set[bytes]) -> bool:
    """Whether canonical bytes tell what was lent, in any of its spellings."""
    return any(spelling in said for spelling in lent)


def _described(said: Result | None) -> bytes:
    texts = () if said is None else (said.summary, said.search_text, said.cursor, said.source, said.data_version)
    return _joined(text for text in texts if text is not None)


def _words(problem: Problem) -> bytes:
    """What a problem would say, and in full what it was made from: words that were cut may end inside a credential."""
    causes: list[str] = []
    cause: BaseException | None = problem
    while cause is not None and len(causes) < 10:
        causes.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    return _joined((problem.message, problem.advice, *_texts(problem.details), *causes))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from (str(name), *_texts(each))
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _texts(each)
    else:
        yield str(value)


def _joined(texts: Iterator[str] | tuple[str, ...]) -> bytes:
    """As canonical JSON would spell them, which is how the spellings are spelt; half characters do not matter here."""
    return orjson.dumps([text.encode(errors="replace").decode() for text in texts])


def spellings(value: str) -> set[bytes]:
    """The value as an answer may carry it: in JSON, in a URL, in hexadecimal, and in base64 at each offset."""
    raw = value.encode()
    found = {canonical(value)[1:-1], quote(value, safe="").encode(), quote_plus(value).encode(), raw.hex().encode()}
    for before in range(3):
        # Characters at either end that also depend on what stands beside the value are left out.
        first, last = (0, 2, 3)[before], (before + len(raw)) * 8 // 6
        plain = base64.b64encode(bytes(before) + raw)[first:last]
        found |= {plain, plain.replace(b"+", b"-").replace(b"/", b"_")}
    return found
