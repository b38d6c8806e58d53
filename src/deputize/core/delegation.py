"""Describe the delegation that a caller requests by token exchange (RFC 8693), before it is derived from a token."""

from dataclasses import dataclass
from typing import Final

from deputize.core.caller import Capability
from deputize.core.contract.contract import Effects

TOKEN_EXCHANGE_GRANT_TYPE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
# The rule that refusals name when a requested scope is not among those of the subject token.
EXCHANGE_SCOPES_RULE: Final = "exchange-scopes"


@dataclass(frozen=True, kw_only=True, slots=True)
class DelegationRequest:
    """A requested delegation. None keeps a limit as the subject token has it.

    `proven_by` is the issuer that proved who the agent is, by a token of the agent's own. Without it, `agent` is a
    label that the holder of the subject token chose.
    """

    agent: str
    proven_by: str = ""
    scopes: frozenset[str] | None = None
    tools: tuple[Capability, ...] | None = None
    ceiling: Effects | None = None
    task: str | None = None
    constraints: bytes | None = None
    lifetime: int | None = None
