"""One frozen type per phase. Each can only be made from the one before it, so a skipped phase does not type-check."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deputize.catalog.compiled import CompiledTool
from deputize.core.call import CallRequest, Mutation
from deputize.core.caller import Caller
from deputize.core.canonical import canonical
from deputize.core.clock import Deadline
from deputize.core.decision import Decision, Demand
from deputize.core.errors import Problem
from deputize.core.frozen import frozen
from deputize.core.hooks import NOTHING_SAID, Hooked
from deputize.core.outcome import Result
from deputize.core.questions import Asks, Round
from deputize.prove.tracing import Trail
from deputize.store.rows import Need

if TYPE_CHECKING:
    from deputize.lifecycle.carried import Carried


@frozen
class Received:
    """A call with an identity, a moment, and as much time as its caller gives it."""

    call_id: str
    caller: Caller
    request: CallRequest
    session: str | None
    started: float
    deadline: Deadline | None
    trail: Trail


@frozen
class Validated:
    """The tool is known and the arguments fit it. The model's own words stay in `received.request.arguments`."""

    received: Received
    tool: CompiledTool
    deadline: Deadline
    canonical: bytes
    call_input: dict[str, Any]
    mutations: tuple[Mutation, ...] = ()
    warnings: tuple[str, ...] = ()
    hooked: Hooked = NOTHING_SAID
    # What it goes on from, where it answers what an earlier call was asked back.
    round: Round | None = None

    @property
    def asked(self) -> bytes:
        """Everything its caller says to it: other answers are another call."""
        return self.canonical if self.round is None else self.canonical + b"\0" + canonical(self.round.responses)


@frozen
class Approved:
    """What people said yes to: the ticket, what it demanded, and the policies it was asked under."""

    ticket: str
    demands: tuple[Demand, ...]
    policy_digest: str


@frozen
class Authorized:
    """This caller may make this call, by these rules, as of these epochs; where rules ask, because people approved."""

    validated: Validated
    decision: Decision
    approved: Approved | None = None


@frozen
class Held:
    """A mutation's hold on the future: its intent is durable, and `epoch` is what its outcome is compared with."""

    call_id: str
    epoch: int
    # Where a worker carries it: whom its tool tells how far it is, and who can stop it.
    run: "Carried | None" = None
    # What it has to have to itself, and whether whoever held it before said that nothing had happened.
    needs: tuple[Need, ...] = ()
    untouched: bool = False
    # What the preview that was decided on handed to the effect, for it to compare with what it meets.
    guards: Mapping[str, Any] | None = None

    @property
    def taken_over(self) -> bool:
        """Another owner held this call before, and nobody knows how far it came."""
        return self.epoch > 1 and not self.untouched


@frozen
class Executed:
    """The tool came to an end: an output, or the problem it ended in."""

    authorized: Authorized
    held: Held | None
    output: Any
    problem: Problem | None
    attempts: int
    seconds: float


@frozen
class Verified:
    """The result was held against the contract; `problem` now includes what verification found.

    `said` is what the tool added to its payload, where it returned more than that. Where there is no problem and
    `asks`, there is no payload either: the tool's server asks something before it answers.
    """

    executed: Executed
    problem: Problem | None
    payload: Any = None
    canonical: bytes = b""
    said: Result | None = None
    hooked: Hooked = NOTHING_SAID
    asks: Asks | None = None
