"""A gateway with faults in it: most searches fail, tools that are listed or shown lack their digest, tickets what is
asked, and approvals the rules that asked.

The faults lie where any fuzzer treads: which cases Hypothesis makes of one seed differs between machines.
"""

from dataclasses import replace
from typing import Any

from deputize.core.caller import Caller
from deputize.lifecycle.approvals.decide import Approvals
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.surface import Listing, Surface
from deputize.lifecycle.tickets import Tickets
from proofs.kit.variant import serve_changed


class Faulty(Surface):
    async def search(self, caller: Caller, query: str, *, limit: int = 10) -> dict[str, Any]:
        if query:
            raise RuntimeError("planted")
        return await super().search(caller, query, limit=limit)

    async def show(self, caller: Caller, name: str, version: str = "latest") -> dict[str, Any]:
        shown = await super().show(caller, name, version)
        return _without_digest(shown)

    async def page(self, caller: Caller, *, after: str = "", limit: int = 100) -> Listing:
        listing = await super().page(caller, after=after, limit=limit)
        return replace(listing, tools=[_without_digest(each) for each in listing.tools])


def _without_digest(tool: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tool.items() if key != "digest"}


class Speechless(Tickets):
    async def show(self, caller: Caller, ticket_id: str) -> dict[str, Any]:
        shown = await super().show(caller, ticket_id)
        return {key: value for key, value in shown.items() if key != "question"}


class Ruleless(Approvals):
    """The real one, with something left out of what people are shown."""

    def __init__(self, real: Approvals) -> None:
        vars(self).update(vars(real))

    async def show(self, caller: Caller, ticket_id: str) -> dict[str, Any]:
        shown = await super().show(caller, ticket_id)
        return {key: value for key, value in shown.items() if key != "rules"}


def change(gateway: Gateway) -> Gateway:
    rooms = gateway.lifecycle.rooms
    approvals = Ruleless(gateway.approvals)
    return replace(gateway, surface=Faulty(rooms), tickets=Speechless(rooms), approvals=approvals)


if __name__ == "__main__":
    serve_changed(change)
