"""Define whose tokens are accepted: `[identity]` and `[[identity.issuers]]`."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from deputize.core.settings.base import SettingsSection


class IssuerSettings(SettingsSection):
    """An identity provider whose tokens are accepted, and the tenant of its callers."""

    issuer: str = Field(description="The `iss` claim of its tokens, exactly.")
    audience: str = Field(
        "", description="The `aud` claim of tokens for this gateway. Unset, `public_url` under `[identity]`."
    )
    console_audience: str | None = Field(
        None,
        description="The `aud` claim of tokens for approval decisions only. Unset, its tokens decide no approvals.",
    )
    login_client_id: str | None = Field(
        None,
        description="Client id of `deputize login` at this issuer: a public client with the redirect URI "
        "`http://127.0.0.1/callback` (any port), the device flow, or both. Unset, people cannot sign in from there.",
    )
    subject_claim: str = Field(
        "sub",
        description="The claim that identifies the user. Use `oid` for Entra ID, whose `sub` differs by audience.",
    )
    jwks_url: str | None = Field(
        None, description="URL of its public keys. Unset, and without `jwks_file`, OpenID discovery finds them."
    )
    jwks_file: Path | None = Field(None, description="File with its public keys, instead of a URL.")
    algorithms: tuple[Literal["RS256", "ES256", "EdDSA"], ...] = Field(
        ("RS256", "ES256", "EdDSA"), description="Signature algorithms its tokens may use."
    )
    tenant: str | None = Field(None, description="The tenant of every token of this issuer.")
    tenant_claim: str | None = Field(
        None, description="The claim that names the tenant, if the issuer serves several tenants."
    )
    tenants: tuple[str, ...] | None = Field(
        None,
        description="The tenants that `tenant_claim` may name, such as `acme` or `beta-*`. A token that names another "
        "tenant is refused. Required with `tenant_claim`.",
    )
    same_subjects_as: str | None = Field(
        None,
        description="The issuer whose subjects this issuer's tokens name: equal subjects are then the same person. "
        "Unset, equal subjects of two issuers are two people.",
    )
    groups_claim: str = Field("groups", description="The claim that lists the user's groups.")
    trust: Literal["untrusted", "standard", "trusted"] = Field(
        "standard", description="The trust level of its callers, as policies see it."
    )
    human: bool = Field(False, description="Its tokens without an `act` claim belong to people who signed in.")
    operator: bool = Field(
        False,
        description="People who signed in here a moment ago may change policies, tools, servers, switches and secrets, "
        "if they have the scope `deputize:admin`; with `deputize:operate`, switches and human tasks.",
    )
    development: bool = Field(
        False, description="Marks the local issuer of `deputize dev`; `deputize serve` refuses to start with it."
    )


class OperatorClientSettings(SettingsSection):
    """A program, such as a deployment pipeline, that may do what needs an operator. It authenticates with its key."""

    client_id: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$",
        description="Its name, of letters, digits, `.`, `-` and `_`: `iss` and `sub` of its assertions.",
    )
    jwks_file: Path | None = Field(None, description="File with its public keys (JWK Set).")
    jwks_url: str | None = Field(None, description="URL of its public keys, instead of a file.")
    algorithms: tuple[Literal["RS256", "ES256", "EdDSA"], ...] = Field(
        ("RS256", "ES256", "EdDSA"), min_length=1, description="Signature algorithms its assertions may use."
    )
    tenants: tuple[str, ...] = Field(min_length=1, description="The tenants it may act in, by name.")
    scopes: tuple[str, ...] = Field(
        ("deputize:admin",), min_length=1, description="The scopes its tokens may have; a request can name fewer."
    )


class IdentitySettings(SettingsSection):
    """Issuers and tokens."""

    issuers: tuple[IssuerSettings, ...] = Field((), description="Identity providers whose tokens are accepted.")
    operators: tuple[OperatorClientSettings, ...] = Field(
        (), description="Programs that may do what needs an operator."
    )
    public_url: str | None = Field(
        None,
        description="Public URL of this gateway, the issuer of tokens it exchanges. Unset, token exchange is off.",
    )
    max_grant_seconds: int = Field(28_800, ge=60, le=30 * 86_400, description="Longest lifetime of a delegation.")
    operator_fresh_seconds: int = Field(
        300, ge=30, le=300, description="Longest time since an operator signed in (`auth_time`): five minutes or less."
    )
    token_cache_seconds: int = Field(30, ge=0, le=30, description="How long a verified token is cached.")
    leeway_seconds: int = Field(5, ge=0, le=60, description="Tolerated clock difference to an issuer.")

    @model_validator(mode="after")
    def _name_this_gateway(self) -> Self:
        """Expect tokens of an issuer without an audience to be for this gateway's own address."""
        if self.public_url is not None and not all(each.audience for each in self.issuers):
            own = {"audience": self.public_url}
            issuers = tuple(each if each.audience else each.model_copy(update=own) for each in self.issuers)
            # The settings are frozen, but not before they are validated.
            object.__setattr__(self, "issuers", issuers)
        return self
