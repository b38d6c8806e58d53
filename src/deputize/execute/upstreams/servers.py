"""The MCP servers of this process: each reached over lines that are opened once and kept.

Above: `drivers/mcp.py`, which runs tools, and `lifecycle/servers/`, which looks at what servers declare.
Below: `http.py` and `stdio.py`, which carry messages, and `listing.py`, which reads what servers declare.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NotRequired, Protocol, TypedDict, Unpack
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from deputize.core.clock import Clock
from deputize.core.definition import Secret, Told
from deputize.core.errors import (
    DeadlineExceeded,
    Problem,
    Secrets,
    ServerNotFound,
    ToolFailed,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from deputize.core.frozen import frozen
from deputize.core.offers import NOTHING, Offers
from deputize.core.questions import NONE, Ability, Round
from deputize.core.servers import CALL_TOOL, Discovered, Kind
from deputize.core.settings import McpServer, Settings
from deputize.execute.deadlines import Deadlines
from deputize.execute.egress import Egress
from deputize.execute.upstreams.headers import Path, repeat, repeated
from deputize.execute.upstreams.http import HttpLine
from deputize.execute.upstreams.listing import listed
from deputize.execute.upstreams.messages import Ask, Introduction, Refused
from deputize.execute.upstreams.stdio import Programs

# The longest a host may take to take a connection.
_CONNECT_SECONDS = 10.0
_Name = tuple[str, str]
_Eyes = tuple[str, str, str]
# Of users, at most so many are remembered for what servers told them.
MOST_EYES = 256


class Line(Protocol):
    """The way to one server, whoever asks and with whatever credential."""

    async def introduce(self, secret: str | None) -> Introduction: ...

    def ask(self, ask: Ask) -> Coroutine[Any, Any, dict[str, Any]]: ...

    def listen(self, secret: str | None) -> None: ...

    async def aclose(self) -> None: ...


class How(TypedDict):
    """With what something is asked of a server: every request is made with all of it."""

    meta: dict[str, Any]
    credential: Secret | None
    seconds: float
    tell: NotRequired[Callable[[Told], None] | None]
    # What whoever waits can be asked back, and what was said to what was asked before.
    abilities: NotRequired[frozenset[Ability]]
    round: NotRequired[Round | None]


@frozen
class _Look:
    """A server as it was last seen, and when."""

    at: float
    digests: dict[str, str]
    instructions: str
    # By tool, the arguments it wants repeated in headers.
    repeated: dict[str, dict[Path, str]]
    # What it can be asked beside its tools.
    methods: frozenset[str] = frozenset()


class Upstreams:
    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self._servers = {(each.tenant or settings.tools.tenant, each.name): each for each in settings.servers}
        # Credentials are told apart by this key, which is nobody's but this process's.
        self._key = self.clock.random_bytes(32)
        self._egress: Egress | None = None
        self._lines: dict[_Name, Line] = {}
        # By tenant, server, and whose eyes it was seen with: nobody's but the gateway's own, or a user's.
        self._looks: OrderedDict[_Eyes, _Look] = OrderedDict()
        self._looking: WeakValueDictionary[_Eyes, asyncio.Lock] = WeakValueDictionary()
        self._agreed: dict[_Name, str] = {}
        self._offers: dict[_Name, Offers] = {}
        self._watching: list[Callable[[str, str], None]] = []
        self._deadlines = Deadlines()
        self._closed = False

    def named(self, tenant: str) -> list[McpServer]:
        return [each for (owner, _), each in self._servers.items() if owner == tenant]

    def settings_of(self, tenant: str, server: str) -> McpServer:
        try:
            return self._servers[tenant, server]
        except KeyError:
            raise ServerNotFound(f"there is no server {server[:64]}", details={"server": server[:64]}) from None

    async def discover(
        self, tenant: str, server: str, credential: Secret | None, seconds: float, *, who: str = ""
    ) -> Discovered:
        """What the server declares now, every page of it. Where callers have credentials of their own, it may declare
        something else to each of them: what it told `who` is held against nobody else's calls.
        """
        line, ask = self._line(tenant, server), Ask(method="tools/list")
        secret, settings = None if credential is None else credential.reveal(), self.settings_of(tenant, server)
        found: Discovered = await self._within(self._found(line, secret, settings), ask, server, seconds)
        self._looks[tenant, server, who] = _Look(
            at=self.clock.monotonic(),
            digests=found.digests,
            instructions=found.instructions_digest,
            repeated={each.name: wanted for each in found.tools if (wanted := repeated(each.said.get("inputSchema")))},
            methods=frozenset(each.name for each in found.others if each.kind is Kind.METHOD),
        )
        self._looks.move_to_end((tenant, server, who))
        self._forget_the_oldest()
        return found

    def _forget_the_oldest(self) -> None:
        """Of what users saw; what the gateway saw itself stays."""
        users = [eyes for eyes in self._looks if eyes[2]]
        for eyes in users[: max(0, len(users) - MOST_EYES)]:
            del self._looks[eyes]
            self._looking.pop(eyes, None)

    async def look(
        self, tenant: str, server: str, credential: Secret | None, seconds: float, *, within: float, who: str = ""
    ) -> None:
        """Discovers, unless the server was seen within so many seconds; of many who want to know, one looks."""
        now = self.clock.monotonic()
        lock = self._looking.setdefault((tenant, server, who), asyncio.Lock())
        try:
            async with asyncio.timeout(seconds):
                await lock.acquire()
        except TimeoutError as error:
            raise UpstreamTimeout(f"the server {server} says nothing of its tools", nothing_happened=True) from error
        try:
            known, waited = self._looks.get((tenant, server, who)), self.clock.monotonic() - now
            if known is None or now - known.at > within:
                await self.discover(tenant, server, credential, seconds - waited, who=who)
        finally:
            lock.release()

    async def call(
        self, tenant: str, server: str, tool: str, arguments: dict[str, Any], **how: Unpack[How]
    ) -> dict[str, Any]:
        """The server's `CallToolResult` as it came, or what it asks first, where `abilities` let it; or the Problem
        that says what is known of the call.
        """
        look = self._looks.get((tenant, server, ""))
        wanted = None if look is None else look.repeated.get(tool)
        headers = {} if wanted is None else repeat(wanted, arguments)
        return await self.ask(tenant, server, CALL_TOOL, {"name": tool, "arguments": arguments}, headers=headers, **how)

    async def ask(
        self,
        tenant: str,
        server: str,
        method: str,
        params: dict[str, Any],
        *,
        headers: Mapping[str, str] | None = None,
        **how: Unpack[How],
    ) -> dict[str, Any]:
        """What the server answers, as it came, or the Problem that says what is known of it."""
        line, credential = self._line(tenant, server), how["credential"]
        ask = Ask(
            method=method,
            params=params,
            meta=how["meta"],
            headers=headers or {},
            secret=None if credential is None else credential.reveal(),
            tell=how.get("tell"),
            abilities=how.get("abilities", NONE),
            round=how.get("round"),
        )
        result: dict[str, Any] = await self._within(line.ask(ask), ask, server, how["seconds"])
        return result

    async def knock(self, tenant: str, server: str, seconds: float) -> str:
        """What the server says to whoever comes without a credential about how to get in (`WWW-Authenticate`); empty
        where it does not say, or lets them in.
        """
        line, ask = self._line(tenant, server), Ask(method="tools/list")

        async def knocked() -> dict[str, Any]:
            await line.introduce(None)
            return await line.ask(ask)

        try:
            await self._within(knocked(), ask, server, seconds)
        except Secrets as refused:
            return refused.challenge
        except (ToolFailed, UpstreamUnavailable):
            return ""
        return ""

    def watch(self, changed: Callable[[str, str], None]) -> None:
        """`changed(tenant, server)` is called when a server says that its tools changed, or its line was lost."""
        self._watching.append(changed)

    def seen(self, tenant: str, server: str, who: str = "") -> dict[str, str] | None:
        """Each tool's digest as it was last seen; None for a server nobody has reached yet."""
        look = self._looks.get((tenant, server, who))
        return None if look is None else look.digests

    def methods(self, tenant: str, server: str) -> frozenset[str]:
        """What the server could be asked beside its tools, when it was last seen."""
        look = self._looks.get((tenant, server, ""))
        return frozenset() if look is None else look.methods

    def agree_to_offers(self, tenant: str, server: str, offers: Offers) -> None:
        """Which resources and prompts somebody agreed to; of a server of which nothing was said here, none."""
        self._offers[tenant, server] = offers

    def offers(self, tenant: str, server: str) -> Offers:
        return self._offers.get((tenant, server), NOTHING)

    def agree(self, tenant: str, server: str, instructions_digest: str | None) -> None:
        """Which instructions of the server somebody agreed to (`Discovered.instructions_digest`); None takes it back.

        Whoever keeps the pins says so before its tools are called, and again whenever they move. While the server says
        anything else, its writes stop; a server of which nothing was said here is compared by its tools alone.
        """
        self._agreed.pop((tenant, server), None)
        if instructions_digest is not None:
            self._agreed[tenant, server] = instructions_digest

    def says_what_was_agreed(self, tenant: str, server: str, who: str = "") -> bool:
        """Whether the instructions are those that somebody agreed to."""
        look, agreed = self._looks.get((tenant, server, who)), self._agreed.get((tenant, server))
        return agreed is None or (look is not None and look.instructions == agreed)

    def seconds_since_seen(self, tenant: str, server: str, who: str = "") -> float:
        look = self._looks.get((tenant, server, who))
        return float("inf") if look is None else self.clock.monotonic() - look.at

    async def aclose(self) -> None:
        """Ends every line and every program, whatever they are doing."""
        self._closed = True
        self._watching.clear()
        lines = list(self._lines.values())
        self._lines.clear()
        await asyncio.gather(*(line.aclose() for line in lines), return_exceptions=True)
        if self._egress is not None:
            await self._egress.aclose()

    async def _found(self, line: Line, secret: str | None, settings: McpServer) -> Discovered:
        async def page(method: str, cursor: str | None) -> dict[str, Any]:
            params = {} if cursor is None else {"cursor": cursor}
            return await line.ask(Ask(method=method, params=params, secret=secret))

        try:
            introduction = await line.introduce(secret)
            found = await listed(introduction, page, resources=bool(settings.resources), prompts=bool(settings.prompts))
        except Refused as refused:
            # No tool of anybody's: it is the server that does not say what it has.
            raise UpstreamUnavailable(
                f"the server does not say what it has: {refused.message[:200]} ({refused.code})", nothing_happened=True
            ) from refused
        if introduction.tells_changes:
            line.listen(secret)
        return found

    async def _within(self, work: Coroutine[Any, Any, Any], ask: Ask, server: str, seconds: float) -> Any:
        """What comes of a request in time. Whatever goes wrong before any of it was sent happened to nobody."""
        try:
            if seconds <= 0:
                work.close()
                raise DeadlineExceeded("the deadline passed before the server was asked, so nothing was done")
            return await self._deadlines.run(work, seconds)
        except TimeoutError as error:
            raise UpstreamTimeout(
                f"the server {server} did not answer within {seconds:.3g} s", nothing_happened=not ask.sent
            ) from error
        except Refused as refused:
            problem = refused.problem(server)
            problem.nothing_happened = problem.nothing_happened or not ask.sent
            raise problem from refused
        except Problem as problem:
            problem.nothing_happened = problem.nothing_happened or not ask.sent
            raise

    def _line(self, tenant: str, server: str) -> Line:
        line = self._lines.get((tenant, server))
        if line is None:
            settings = self.settings_of(tenant, server)
            if self._closed:
                raise UpstreamUnavailable("this gateway is stopping", nothing_happened=True)
            line = self._lines[tenant, server] = self._opened(tenant, settings)
        return line

    def _opened(self, tenant: str, settings: McpServer) -> Line:
        def changed() -> None:
            for each in self._watching:
                # Not from inside whatever the line is doing, and apart from one another.
                asyncio.get_running_loop().call_soon(each, tenant, settings.name)

        if settings.url is None:
            return Programs(settings, self.clock, key=self._key, changed=changed)
        if self._egress is None:
            # Its own way out: what the operator named for other things is not for servers to be reached at.
            hosts = (urlsplit(each.url).hostname for each in self._servers.values() if each.url)
            self._egress = Egress(frozenset(host for host in hosts if host), seconds=_CONNECT_SECONDS)
        return HttpLine(settings, self._egress, key=self._key, changed=changed)
