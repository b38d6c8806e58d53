"""A gateway with faults in it: most searches fail, and tools that are listed or shown lack their digest.

The faults lie where any fuzzer treads: which cases Hypothesis makes of one seed differs between machines.
"""

from dataclasses import replace
from typing import Any

from deputize.core.caller import Caller
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.surface import Listing, Surface
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


def change(gateway: Gateway) -> Gateway:
    return replace(gateway, surface=Faulty(gateway.lifecycle.rooms))


if __name__ == "__main__":
    serve_changed(change)
