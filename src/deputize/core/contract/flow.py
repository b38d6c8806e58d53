"""Declare a flow: the calls that a tool consists of, in which order, and where each gets its arguments from.

Steps run one after another. A step is the call of a tool, steps beside each other (`parallel`), or a list of steps
under a condition (`steps` with `when`). Values are named by JSON Pointers: `/input/…` is what the flow was called with
and `/steps/NAME/…` the result of an earlier step. A value that is missing is left out.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from deputize.core.contract.parts import SparsePart, ToolRef, Word

MAX_FLOW_STEPS: Final = 100
MAX_FLOW_DEPTH: Final = 10
MAX_ROUNDS: Final = 100
# All of its steps, elements, rounds and fallbacks. Each end of a call evaluates the flow, and reads what was recorded.
MAX_FLOW_CALLS: Final = 1000
# The tool that runs programs; each of its calls brings its own.
PROGRAM_TOOL: Final = "code.run"

# Where a value comes from; `/item`, `/index` and `/round` exist inside `map` and `loop`.
Source = Annotated[str, StringConstraints(pattern=r"^/(input|steps|item|index|round)(/.*)?$", max_length=240)]
Condition = Annotated[str, StringConstraints(min_length=1, max_length=400)]
Bindings = dict[str, Source]


class FlowCall(SparsePart):
    """A call: of which tool, with which arguments. `bind` says where an argument comes from, `constants` what it is."""

    tool: ToolRef
    version: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None
    bind: Bindings | None = None
    constants: dict[str, Any] | None = None


class FlowMap(SparsePart):
    """One call for each element of a list, beside each other; the result is the list of their results."""

    over: Source
    max_items: Annotated[int, Field(ge=1, le=MAX_ROUNDS)]


class FlowLoop(SparsePart):
    """Call again until a condition holds; each round can use the result of the round before. The last one counts."""

    until: Condition
    max_rounds: Annotated[int, Field(ge=1, le=MAX_ROUNDS)]


class FlowStep(SparsePart):
    """A step of a flow: `tool`, `parallel` or `steps`. If `when` does not hold, `otherwise` runs instead, if given.

    `fallback` has calls that are made in turn if the step's own failed and is known to have changed nothing.
    """

    name: Word
    when: Condition | None = None
    tool: ToolRef | None = None
    version: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None
    bind: Bindings | None = None
    constants: dict[str, Any] | None = None
    map: FlowMap | None = None
    loop: FlowLoop | None = None
    fallback: Annotated[tuple[FlowCall, ...], Field(min_length=1, max_length=5)] | None = None
    parallel: Annotated[tuple["FlowStep", ...], Field(min_length=2, max_length=MAX_FLOW_STEPS)] | None = None
    # How many of the parallel steps must succeed; the others are canceled then.
    join: Literal["all", "quorum", "first"] | None = None
    quorum: Annotated[float, Field(gt=0, le=1)] | None = None
    steps: Annotated[tuple["FlowStep", ...], Field(min_length=1, max_length=MAX_FLOW_STEPS)] | None = None
    otherwise: Annotated[tuple["FlowStep", ...], Field(min_length=1, max_length=MAX_FLOW_STEPS)] | None = None

    @property
    def calls(self) -> tuple[FlowCall, ...]:
        """The step's own call, and those that are made if it fails."""
        if self.tool is None:
            return ()
        own_call = FlowCall(tool=self.tool, version=self.version, bind=self.bind, constants=self.constants)
        return (own_call, *(self.fallback or ()))

    @property
    def children(self) -> tuple["FlowStep", ...]:
        return (*(self.parallel or ()), *(self.steps or ()), *(self.otherwise or ()))

    def walk(self) -> Iterator["FlowStep"]:
        """Yield this step and all steps inside it."""
        yield self
        for child in self.children:
            yield from child.walk()


class Flow(SparsePart):
    """A flow, and where its result comes from: one value, or an object of several; else the last step's result.

    The steps of `code.run` are not declared: `program` says where its input has the program that decides on them, and
    `session` where it names what the program goes on from.
    """

    steps: Annotated[tuple[FlowStep, ...], Field(max_length=MAX_FLOW_STEPS)] = ()
    program: Source | None = None
    session: Source | None = None
    output: Source | Bindings | None = None
    # What becomes of what was done if the flow fails: it is taken back, unless the contract says `keep`.
    on_failure: Literal["compensate", "keep"] | None = None

    @property
    def is_compensated(self) -> bool:
        """True if what a failed flow did is taken back."""
        return self.on_failure != "keep"

    def walk(self) -> Iterator[FlowStep]:
        """Yield all steps, those inside others too."""
        for step in self.steps:
            yield from step.walk()


def count_calls(flow: Flow, count_inner: Callable[[str], int] = lambda tool: 0) -> int:
    """Count the calls that a flow makes at most; `count_inner` counts those that a tool makes, if it is a flow."""
    return sum(_count_step_calls(each, count_inner) for each in flow.walk())


def _count_step_calls(step: FlowStep, count_inner: Callable[[str], int]) -> int:
    repeats = step.map.max_items if step.map is not None else 1 if step.loop is None else step.loop.max_rounds
    return repeats * sum(1 + count_inner(call.tool) for call in step.calls)


# Returns how many seconds a call of a tool may take.
EstimateSeconds = Callable[[str], float]


def measure_steps(steps: tuple[FlowStep, ...], estimate: EstimateSeconds) -> float:
    """Measure the longest way through a list of steps, in seconds."""
    return sum(measure_step(each, estimate) for each in steps)


def measure_step(step: FlowStep, estimate: EstimateSeconds) -> float:
    """Measure the longest way through a step: all of its rounds and fallbacks, the slowest of its parallel steps."""
    own_seconds = sum(estimate(each.tool) for each in step.calls)
    if step.loop is not None:
        own_seconds *= step.loop.max_rounds
    if step.parallel is not None:
        own_seconds = max(measure_step(each, estimate) for each in step.parallel)
    if step.steps is not None:
        own_seconds = measure_steps(step.steps, estimate)
    return max(own_seconds, measure_steps(step.otherwise or (), estimate))
