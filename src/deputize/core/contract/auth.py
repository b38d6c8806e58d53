"""Declare who may call a tool, and the credential it acts with."""

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import SerializerFunctionWrapHandler, StringConstraints, model_serializer

from deputize.core.contract.parts import ContractPart, Permission, SecretName, omit_unset_fields


class Auth(ContractPart):
    """Scopes that callers need, and the credential that the tool acts with."""

    scopes: tuple[Annotated[str, StringConstraints(pattern=r"^[\x21\x23-\x5B\x5D-\x7E]{1,120}$")], ...] = ()
    permissions: tuple[Permission, ...] = ()
    # "link" is for MCP servers and HTTP services: the user's linked account there. "client" is for MCP servers: this
    # gateway's OAuth client.
    credential: Literal["none", "delegated", "vault", "link", "client"] = "none"
    # For "vault", the name of the tenant's secret; for "delegated", the audience of the minted token.
    secret: SecretName | None = None
    audience: Annotated[str, StringConstraints(min_length=1, max_length=400)] | None = None
    # For "vault", the secret of the tool's preview: one that cannot change anything.
    readonly_secret: SecretName | None = None

    @model_serializer(mode="wrap")
    def _serialize_compatibly(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return omit_unset_fields(self, dump(self), "readonly_secret")

    @cached_property
    def required_scopes(self) -> tuple[str, ...]:
        """The scopes that a caller's token must have: a permission is a scope with a kind."""
        return (*self.scopes, *self.permissions)
