"""Issue credentials to tools: one per attempt, fetched just in time and closed when the attempt ends.

    credential: none        nothing is fetched
    credential: vault       the tenant's secret that the contract names, from the vault in the settings
    credential: delegated   a token minted for the contract's audience, if this gateway mints tokens
    credential: link        a token of the user's own account at the tool's server
    credential: client      a token of this gateway's own account there

A preview gets less: the contract's read-only secret, a token with read scopes only, or nothing.

Credentials are issued between the claim and the effect, so a failure proves that nothing happened. Issued values are
remembered until their call has ended: a result that contains one is withheld.
"""

import base64
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol
from urllib.parse import quote, quote_plus

import orjson

from deputize.core.canonical import canonicalize
from deputize.core.contract.tools import Secret, ToolProgress
from deputize.core.errors import CredentialExpired, CredentialInResult, CredentialMissing, Problem
from deputize.core.outcome import Result
from deputize.govern.identity.minted_tokens import select_read_scopes
from deputize.govern.vault.port import SecretVault
from deputize.lifecycle.phases import Authorized, Verified

# Mints a token on the call's authority: (authorized, call id, seconds it must live, scopes).
MintToken = Callable[[Authorized, str, float, tuple[str, ...]], Awaitable[Secret]]


class UpstreamTokenSource(Protocol):
    """Tokens for servers that need a sign-in, for the caller of one call."""

    async def get_token(self, authorized: Authorized, seconds: float) -> Secret: ...

    async def handle_rejection(self, authorized: Authorized, token: str, error: CredentialExpired) -> None: ...


_REDACTED_MESSAGE = "the tool's message is withheld because it contains the tool's credential"


@dataclass(frozen=True, kw_only=True, slots=True)
class CredentialBroker:
    vault: SecretVault
    mint: MintToken | None = None
    # For servers that need a sign-in; None if there are none.
    upstream_tokens: UpstreamTokenSource | None = None
    # By call id: the encodings of the secrets that were issued to the call.
    _secret_forms: dict[str, set[bytes]] = field(default_factory=dict, repr=False)

    async def issue_for_attempt(self, authorized: Authorized, call_id: str, seconds: float) -> Secret | None:
        """Issue the credential that the contract names, valid for at most so many seconds; the caller closes it."""
        kind = authorized.contract.auth.credential
        if kind == "none":
            return None
        auth = authorized.contract.auth
        try:
            if kind == "vault":
                secret = await self._fetch_from_vault(authorized, auth.secret, seconds)
                await self._fetch_further(authorized, secret, seconds)
            elif kind != "delegated":
                secret = await self._require_upstream_tokens(authorized).get_token(authorized, seconds)
            else:
                secret = await self._mint_token(authorized, call_id, seconds, auth.scopes)
        except Problem as problem:
            raise problem.replace(nothing_happened=True) from problem.__cause__
        forms = self._secret_forms.setdefault(authorized.call.call_id, set())
        for each in (secret, *secret.further):
            forms.update(derive_secret_forms(each.reveal()))
        return secret

    async def handle_rejection(self, authorized: Authorized, secret: Secret, error: CredentialExpired) -> None:
        """Handle a rejected credential: raise what can be done about it, if anything."""
        if authorized.contract.auth.credential in ("link", "client"):
            await self._require_upstream_tokens(authorized).handle_rejection(authorized, secret.reveal(), error)

    async def issue_for_preview(self, authorized: Authorized, seconds: float) -> Secret | None:
        """Issue a credential for a preview, which must not change anything. The caller closes it.

        It is not remembered here, so the caller must keep it out of the preview.
        """
        contract = authorized.contract
        auth, call_id = contract.auth, authorized.call.call_id
        if auth.credential == "vault" and auth.readonly_secret is not None:
            return await self._fetch_from_vault(authorized, auth.readonly_secret, seconds)
        if auth.credential == "delegated" and (scopes := select_read_scopes(contract)):
            return await self._mint_token(authorized, call_id, seconds, scopes)
        return None

    def _require_upstream_tokens(self, authorized: Authorized) -> UpstreamTokenSource:
        if self.upstream_tokens is None:
            raise CredentialMissing(f"the settings have no server with a sign-in for {authorized.validated.tool.name}")
        return self.upstream_tokens

    async def _fetch_from_vault(self, authorized: Authorized, name: str | None, seconds: float) -> Secret:
        if name is None:
            raise CredentialMissing(f"the contract of {authorized.validated.tool.name} needs a secret but names none")
        tenant = authorized.call.tenant
        return await self.vault.fetch(tenant, name, seconds=seconds)

    async def _fetch_further(self, authorized: Authorized, secret: Secret, seconds: float) -> None:
        """Fetch the secrets that the request of a service's operation has beside its credential."""
        request = authorized.contract.handler.request
        try:
            for each in (request and request.further_credentials) or ():
                secret.further += (await self._fetch_from_vault(authorized, each.secret, seconds),)
        except BaseException:
            secret.close()
            raise

    async def _mint_token(
        self, authorized: Authorized, call_id: str, seconds: float, scopes: tuple[str, ...]
    ) -> Secret:
        if self.mint is None:
            raise CredentialMissing(
                "this gateway mints no tokens, but the tool needs one",
                advice="Ask the operator of this gateway to set identity.public_url.",
            )
        return await self.mint(authorized, call_id, seconds, scopes)

    def forget_call(self, authorized: Authorized) -> None:
        """Forget the secrets of a call that has ended."""
        self._secret_forms.pop(authorized.call.call_id, None)

    def filter_progress(
        self, authorized: Authorized, report: Callable[[ToolProgress], None] | None
    ) -> Callable[[ToolProgress], None] | None:
        """Wrap a progress reporter so that it drops reports that contain a credential."""
        if report is None:
            return None
        call_id = authorized.call.call_id

        def report_safely(progress: ToolProgress) -> None:
            secret_forms = self._secret_forms.get(call_id) or set()
            if not has_secret(_encode_texts((progress.message,)), secret_forms) and not has_secret(
                progress.partial or b"", secret_forms
            ):
                report(progress)

        return report_safely

    def withhold_secrets(self, verified: Verified) -> Verified:
        """Withhold issued credentials: refuse a result that contains one, and redact an error's texts."""
        secret_forms = self._secret_forms.get(verified.call.call_id)
        if not secret_forms:
            return verified
        problem = verified.problem
        if problem is not None:
            return replace(verified, problem=withhold_from_problem(problem, secret_forms))
        if not has_secret(verified.canonical, secret_forms) and not has_secret(
            _encode_result_texts(verified.result), secret_forms
        ):
            return verified
        tool = verified.validated.tool.name
        return Verified(
            executed=verified.executed,
            problem=CredentialInResult(f"the result of {tool} contains its credential"),
        )


def withhold_from_problem(problem: Problem, secret_forms: set[bytes]) -> Problem:
    """Return the problem without its texts that contain a credential."""
    if not has_secret(_encode_problem_texts(problem), secret_forms):
        return problem
    is_in_details = has_secret(_encode_texts(_iterate_texts(problem.details)), secret_forms)
    return problem.replace(
        message=_REDACTED_MESSAGE,
        advice=problem.spec.advice,
        details={} if is_in_details else problem.details,
        is_redacted=True,
    )


def has_secret(text: bytes, secret_forms: set[bytes]) -> bool:
    """Tell whether canonical bytes contain a secret in any of its encodings."""
    return any(form in text for form in secret_forms)


def _encode_result_texts(result: Result | None) -> bytes:
    texts = (
        ()
        if result is None
        else (result.summary, result.search_text, result.cursor, result.source, result.data_version)
    )
    return _encode_texts(text for text in texts if text is not None)


def _encode_problem_texts(problem: Problem) -> bytes:
    """Encode a problem's texts and those of its causes, since shortened texts may end inside a credential."""
    causes: list[str] = []
    cause: BaseException | None = problem
    while cause is not None and len(causes) < 10:
        causes.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    return _encode_texts((problem.message, problem.advice, *_iterate_texts(problem.details), *causes))


def _iterate_texts(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from (str(name), *_iterate_texts(each))
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _iterate_texts(each)
    else:
        yield str(value)


def _encode_texts(texts: Iterator[str] | tuple[str, ...]) -> bytes:
    """Encode texts as canonical JSON, like the secret forms; lone surrogates do not matter here."""
    return orjson.dumps([text.encode(errors="replace").decode() for text in texts])


def derive_secret_forms(value: str) -> set[bytes]:
    """Derive the encodings that a result may contain: JSON, URL, hexadecimal, and base64 at each offset."""
    raw = value.encode()
    forms = {canonicalize(value)[1:-1], quote(value, safe="").encode(), quote_plus(value).encode(), raw.hex().encode()}
    for offset in range(3):
        # Leave out characters at either end that also depend on the bytes next to the value.
        first, last = (0, 2, 3)[offset], (offset + len(raw)) * 8 // 6
        base64_form = base64.b64encode(bytes(offset) + raw)[first:last]
        forms |= {base64_form, base64_form.replace(b"+", b"-").replace(b"/", b"_")}
    return forms
