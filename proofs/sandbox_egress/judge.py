"""Judge what arrived at the listeners, with rules of the proof's own: nothing here is taken from the product."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from proofs.kit.report import Figure

LISTED_PORT = 443
LISTED = {
    "shop.example": "93.184.215.20",
    **dict.fromkeys(("turning.example", "mixed.example"), "93.184.215.21"),
    # These lead where no setting allows a connection.
    **dict.fromkeys(
        ("inside.example", "mapped.example", "translated.example", "nowhere.example",
         "platform.example"), ""
    ),
}  # fmt: skip
"""The names that the operator listed, and the one address of each that programs may reach, on one port."""
HARMLESS = "harmless"
AROUND = ("direct", "udp", "dns", "unix", "unfinished")
"""The kinds of attempt that say nothing to the proxy, or nothing that is a request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """What arrived: a connection with the host that its TLS names, a datagram, or a question to the name server.

    `has_data` says that the client sent anything after it had connected.
    """

    kind: Literal["tcp", "udp", "dns", "unix"]
    address: str = ""
    port: int = 0
    name: str | None = None
    has_data: bool = False

    @property
    def is_forbidden(self) -> bool:
        if self.kind == "dns":
            # The gateway asks for what is listed.
            return self.name not in LISTED
        names = {name for name, address in LISTED.items() if address == self.address}
        if self.kind != "tcp" or not names or self.port != LISTED_PORT:
            return True
        # The gateway connects before it knows what the program will say.
        return self.has_data and self.name not in names


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """What one attempt led to: without a sandbox and a check, in a sandbox with hosts, and in one without.

    `problem` says why it was not tried, if it was not.
    """

    name: str
    control: tuple[Arrival, ...]
    listed: tuple[Arrival, ...]
    alone: tuple[Arrival, ...]
    is_recorded: bool
    problem: str = ""

    @property
    def has_control(self) -> bool:
        return any(each.is_forbidden for each in self.control)

    @property
    def forbidden(self) -> tuple[Arrival, ...]:
        # Without hosts, not even what is listed may be reached or asked for.
        return (*(each for each in self.listed if each.is_forbidden), *self.alone)


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    """A program that people use: whether it reached what is listed, and how it was told of what is not."""

    name: str
    has_reached: bool
    refusal: str
    arrivals: tuple[Arrival, ...] = ()
    output: str = ""

    @property
    def is_told(self) -> bool:
        return self.refusal == "E3406"


def compute_figures(attempts: Sequence[Attempt], clients: Sequence[Client]) -> dict[str, Figure]:
    """Compute the figures that the bars are about."""
    with_control = {each.name for each in attempts if each.has_control}
    requests = {each.name for each in attempts if each.name.partition(":")[0] not in AROUND}
    arrivals = [each for client in clients for each in client.arrivals]
    return {
        "attempts": len({each.name for each in attempts}),
        "attempts_with_control": len(with_control),
        "kinds": len({name.partition(":")[0] for name in with_control}),
        "forbidden_connections": sum(len(each.forbidden) for each in attempts) + _count_forbidden(arrivals),
        "not_tried": sum(bool(each.problem) for each in attempts),
        "refusals_unrecorded": sum(not each.is_recorded for each in attempts if each.name in requests),
        "clients": len(clients),
        "clients_that_reach_nothing": sum(not each.has_reached for each in clients),
        "clients_not_told": sum(not each.is_told for each in clients),
        "connections_of_clients": sum(each.kind == "tcp" for each in arrivals),
    }


def _count_forbidden(arrivals: Iterable[Arrival]) -> int:
    return sum(each.is_forbidden for each in arrivals)
