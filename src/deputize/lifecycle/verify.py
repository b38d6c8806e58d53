"""Phase five: the result is held against the contract before anybody relies on it.

A mutation whose result fails here has happened all the same: it is reported as failed, never released for a repeat.
"""

from typing import Any
from urllib.parse import urlsplit

from deputize.catalog.schemas import depth
from deputize.core.canonical import NotCanonical, canonical
from deputize.core.errors import PredicateFailed, Problem, QuestionRefused, ResultInvalid
from deputize.core.outcome import Result
from deputize.core.questions import Asks
from deputize.execute.driver import Drivers
from deputize.execute.drivers.python import StillRunning
from deputize.lifecycle.execute import late_end
from deputize.lifecycle.phases import Executed, Verified
from deputize.lifecycle.questions import held_to_shapes
from deputize.lifecycle.rooms import Rooms
from deputize.prove.metrics import Metrics

# Deeper than this, what writes a result down cannot write it.
_DEEPEST = 100


async def verify(rooms: Rooms, executed: Executed) -> Verified:
    """`late_end` of a mutation comes here again; until then what was lent to the call is remembered."""
    authorized = executed.authorized
    if authorized.validated.tool.contract.auth.credential == "none":
        return await _checked(rooms, executed)
    try:
        return rooms.credentials.unquoted(await _checked(rooms, executed))
    finally:
        if executed.held is None or late_end(executed) is None:
            rooms.credentials.forget(authorized)


async def _checked(rooms: Rooms, executed: Executed) -> Verified:
    if executed.problem is not None:
        return Verified(executed=executed, problem=executed.problem)
    output = executed.output
    if isinstance(output, Asks):
        return _asked_back(rooms, executed, output)
    said = output if isinstance(output, Result) else None
    payload = output if said is None else said.payload
    try:
        if said is not None:
            _against_envelope(said)
        as_returned = _against_contract(executed, payload, rooms.metrics)
        if executed.authorized.validated.tool.contract.verifies:
            await _against_tool(executed, payload, rooms.driver)
    except Problem as problem:
        # Whatever the check says of itself, it came after the effect.
        problem.nothing_happened = False
        return Verified(executed=executed, problem=problem)
    return Verified(executed=executed, problem=None, payload=payload, canonical=as_returned, said=said)


def _asked_back(rooms: Rooms, executed: Executed, asks: Asks) -> Verified:
    """No result yet, and so nothing for the contract: what is asked is held to what may be asked."""
    try:
        shaped = held_to_shapes(asks, urlsplit(rooms.settings.identity.public_url or "").hostname)
    except QuestionRefused as problem:
        return Verified(executed=executed, problem=problem)
    told = canonical({"questions": shaped.questions, "state": shaped.state})
    return Verified(executed=executed, problem=None, canonical=told, asks=shaped)


def _against_envelope(said: Result) -> None:
    """What a tool says about its payload stands in the envelope, so it must be of kinds an envelope can hold."""
    texts = (said.summary, said.search_text, said.cursor, said.source, said.data_version)
    numbers = (said.cost, said.total_count)
    fits = (
        all(text is None or isinstance(text, str) for text in texts)
        and all(number is None or isinstance(number, int | float) for number in numbers)
        and (said.has_more is None or isinstance(said.has_more, bool))
    )
    if not fits:
        raise ResultInvalid("the tool describes its result with values of the wrong types")
    try:
        canonical({"texts": texts, "numbers": numbers})
    except NotCanonical as error:
        raise ResultInvalid(f"the tool describes its result in a way that JSON cannot carry: {error}") from error


def _against_contract(executed: Executed, payload: Any, metrics: Metrics) -> bytes:
    """The result's canonical bytes, once schema and predicates hold."""
    validated = executed.authorized.validated
    tool = validated.tool
    # Before the validator, which is made for JSON and fails on what is none.
    try:
        as_returned = canonical({"result": payload})
    except NotCanonical as error:
        raise ResultInvalid(f"{tool.name} returned a value that JSON cannot carry exactly: {error}") from error
    if as_returned.count(b"{") + as_returned.count(b"[") > _DEEPEST and depth(payload) > _DEEPEST:
        raise ResultInvalid(f"{tool.name} returned a value that nests deeper than {_DEEPEST} levels")
    if not tool.is_valid_output(payload):
        metrics.misfit(tool.contract, "output")
        errors = tool.output_errors(payload)
        raise ResultInvalid(f"{tool.name} returned something its schema does not allow", details={"errors": errors})
    failed = tool.failed_predicates(validated.call_input, payload)
    if failed:
        raise PredicateFailed(
            f"the result of {tool.name} fails its check {failed[0].name}",
            details={"predicates": [{"name": p.name, "description": p.description} for p in failed]},
        )
    return as_returned


async def _against_tool(executed: Executed, payload: Any, driver: Drivers) -> None:
    """The tool's own check of what it did."""
    validated = executed.authorized.validated
    tool = driver.find(validated.tool.contract)
    try:
        await driver.confirm(tool, validated.call_input, payload, validated.tool.contract.timeout.effective_seconds)
    except (StillRunning, TimeoutError) as error:
        raise PredicateFailed(f"{validated.tool.name} did not confirm its own result in time") from error
    except Problem:
        raise
    except Exception as error:
        raise PredicateFailed(
            f"{validated.tool.name} does not confirm its own result: {type(error).__name__}"
        ) from error
