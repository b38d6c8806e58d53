"""Which servers a caller can have resources and prompts of, and which of them an address or a name means.

An address is a server's own as long as it means one server only. Where several servers that this caller knows of would
answer to it, nobody guesses: it is shown, and has to be asked for, with the server's name before it, as in
`orders+https://example.com/a`. Servers that are away or blocked count, so that an address never means another server
for a while. Prompts always have the server's name before them, as tools do.

Above: `resources.py`, `prompts.py`. Below: the surface, and what was agreed to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from deputize.core.errors import NotOffered
from deputize.core.offers import Offers, Said
from deputize.core.servers import Kind, address, item_of
from deputize.doors.mcp.turn import Turn

_APART: Final = "__"


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One server, by a contract of it that this caller knows: `loaded` says whether it can be used now, and `present`
    what the server said it has when it was last looked at; None while nobody has looked.
    """

    server: str
    tool: str
    loaded: bool
    agreed: Offers
    present: Mapping[str, str] | None

    def shown(self, kind: Kind) -> dict[str, Said]:
        """What was agreed to and is still there."""
        if not self.loaded:
            return {}
        found = {Kind.RESOURCE: self.agreed.resources, Kind.TEMPLATE: self.agreed.templates}
        agreed = found.get(kind, self.agreed.prompts)
        present = self.present
        return {name: said for name, said in agreed.items() if present is None or item_of(kind, name) in present}

    @property
    def before(self) -> str:
        """What stands before an address that means several servers: a scheme of an address cannot have `_`."""
        return self.server.replace("_", "-") + "+"


async def sources(turn: Turn, method: str) -> list[Source]:
    """In order of the servers' names."""
    rooms, tenant = turn.gateway.lifecycle.rooms, turn.caller.tenant
    found = []
    for version, loaded in await turn.gateway.surface.methods(turn.caller):
        at, state = address(version.contract.handler.target), None
        if at.method == method:
            state = rooms.servers.of(tenant, at.server)
            found.append(
                Source(
                    server=at.server,
                    tool=version.contract.full_name,
                    loaded=loaded,
                    agreed=rooms.upstreams.offers(tenant, at.server),
                    present=None if state is None else state.digests,
                )
            )
    return sorted(found, key=lambda each: each.server)


def address_shown(own: str, source: Source, among: Sequence[Source]) -> str:
    """An address of a source as this caller has to spell it. `own` may be a template's."""
    is_clear = not any(own.startswith(each.before) for each in among) and not any(
        each is not source and _answers(each, own) for each in among
    )
    return own if is_clear else source.before + own


def source_of(uri: str, among: Sequence[Source]) -> tuple[Source, str]:
    """The server that an address means, and the address as that server knows it. Raises `NotOffered`."""
    for each in among:
        if uri.startswith(each.before):
            among, uri = (each,), uri.removeprefix(each.before)
            break
    meant = [each for each in among if _answers(each, uri)]
    if len(meant) > 1:
        spelt = ", ".join(each.before + uri for each in meant)
        raise NotOffered(
            f"several servers answer to {uri[:200]}",
            details={"uri": uri[:200]},
            advice=f"Say which one is meant, by one of these addresses: {spelt[:1000]}.",
        )
    if not meant:
        raise NotOffered(f"there is no resource {uri[:200]}", details={"uri": uri[:200]})
    return meant[0], uri


def prompt_shown(name: str, source: Source) -> str:
    return f"{source.server}{_APART}{name}"


def prompt_of(shown: str, among: Sequence[Source]) -> tuple[Source, str]:
    """The server that a prompt is of, and the prompt's name there. Raises `NotOffered`."""
    server, apart, name = shown.partition(_APART)
    for each in among:
        if apart and each.server == server and name in each.agreed.prompts:
            return each, name
    raise NotOffered(f"there is no prompt {shown[:200]}", details={"name": shown[:200]})


def _answers(source: Source, uri: str) -> bool:
    return uri in source.agreed.templates or source.agreed.has_resource(uri)
