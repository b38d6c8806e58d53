"""Declare what a tool's code may use and reach while it runs."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, StringConstraints, model_serializer

from deputize.core.contract.parts import ContractPart, Permission, SparsePart, omit_unset_fields


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendDemand:
    """A rule of the policies that demands a sandbox on this backend, or a stronger one, for a call."""

    rule: str
    where: str
    reason: str
    backend: str

    @property
    def title(self) -> str:
        """What the rule says of a call that it does not forbid."""
        return f"only in a sandbox on {self.backend}{': ' + self.reason if self.reason else ''}"


class ResourceLimits(ContractPart):
    """CPU, memory, storage and processes of the tool."""

    cpu: Annotated[str, StringConstraints(pattern=r"^\d{1,6}m?$")] = "1"
    memory: Annotated[str, StringConstraints(pattern=r"^\d{1,6}(Mi|Gi)$")] = "512Mi"
    ephemeral_storage: Annotated[str, StringConstraints(pattern=r"^\d{1,6}(Mi|Gi)$")] = "1Gi"
    processes: Annotated[int, Field(ge=1, le=4_096)] | None = None

    @model_serializer(mode="wrap")
    def _serialize_compatibly(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return omit_unset_fields(self, dump(self), "processes")


class NetworkPolicy(ContractPart):
    """Hosts and ports that the tool may reach."""

    allowed_domains: tuple[str, ...] = ()
    allowed_ports: tuple[Annotated[int, Field(ge=1, le=65_535)], ...] = (80, 443)
    deny_all_egress: bool = False


class Sandbox(SparsePart):
    """The isolation that a tool's code needs.

    Tier 0 only computes, tier 1 also reads, tier 2 also reaches the hosts in `network.allowed_domains`, and tier 3 may
    do what its permissions say, with an approval of each call. `backend` is the weakest that may run it.
    """

    tier: Literal[0, 1, 2, 3]
    permissions: tuple[Permission, ...] | None = None
    backend: Literal["interpreter", "namespaces", "gvisor"] | None = None
