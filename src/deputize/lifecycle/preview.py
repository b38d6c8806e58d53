"""What a call would do, looked at and not done: for whoever decides about it, and for who only wants to know.

The tool's own preview is asked where it has one, with a credential that can only read. Any other call, and one whose
preview fails, is told from the contract, which knows what may be touched and calls everything else unknown.

Above: `dry_run.py`, and the asking. Below: the driver.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from pydantic import ValidationError

from deputize.core.canonical import NotCanonical, canonical
from deputize.core.contract import PreviewRules
from deputize.core.definition import AnyTool, PythonTool, Secret, ToolContext
from deputize.core.errors import (
    CredentialQuoted,
    PreconditionFailed,
    Problem,
    RequiresSetup,
    ResultInvalid,
    SemanticViolation,
    ToolPrecondition,
)
from deputize.core.frozen import frozen
from deputize.core.preview import LARGEST_PREVIEW, Preview, ReadPreview, preview_digest
from deputize.lifecycle.credentials import hold_back, quotes, spellings
from deputize.lifecycle.phases import Authorized, Validated
from deputize.lifecycle.record import redaction_of
from deputize.lifecycle.rooms import Rooms
from deputize.prove.hidden import Hidden

# Whoever calls waits for it, however long the tool itself may take.
_LONGEST_SECONDS: Final = 30.0
_USUAL = PreviewRules()


@frozen
class Previewed:
    """`shown` is for people and programs, and redacted; `guards` are for the tool alone. Equal digests: nothing that
    counts has changed. `fresh_seconds` is None where looking again would show the same.
    """

    shown: dict[str, Any]
    digest: bytes
    at: datetime
    fresh_seconds: int | None
    guards: Mapping[str, Any]
    # A sentence for each precondition that does not hold.
    failing: tuple[str, ...] = ()


async def preview(rooms: Rooms, authorized: Authorized) -> Previewed:
    """What would happen. Raises where a precondition does not hold, or the tool's own check refuses the values: such a
    call is put to nobody. A preview that fails says so, and is no reason to refuse.

    Look for what the call's key already has before this: what was done once may well not be possible again.
    """
    previewed = await look(rooms, authorized)
    if previewed.failing:
        raise PreconditionFailed(
            f"{authorized.validated.tool.name} would fail: {previewed.failing[0]}",
            details={"preconditions": previewed.shown["preconditions"]},
        )
    return previewed


async def look(rooms: Rooms, authorized: Authorized) -> Previewed:
    """As `preview`, and shows also what does not hold."""
    validated = authorized.validated
    contract, tenant = validated.tool.contract, validated.received.caller.tenant
    validated.deadline.require(rooms.clock.monotonic())
    keys = rooms.keys.ready(tenant) or await rooms.keys.load(rooms.store, tenant)
    tool = _loaded(rooms, validated)
    if tool is not None and tool.validate is not None:
        await rooms.driver.preflight(tool, validated.call_input, _seconds(rooms, validated))
    document, rules, problem = _by_contract(validated), _USUAL, ""
    if contract.preview:
        rules = contract.preview_rules or _USUAL
        try:
            document = await _by_tool(rooms, authorized, tool)
        except SemanticViolation:
            raise
        except Problem as failed:
            problem = failed.message
    shown, failing = _shown(validated, document)
    at = datetime.fromtimestamp(rooms.clock.epoch_ms() / 1000, UTC)
    told = {"previewed_at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), "problem": problem or None}
    return Previewed(
        shown={**shown, **told, "fresh_seconds": rules.fresh_seconds if contract.preview else None},
        digest=preview_digest(keys.fingerprint, {**document, "failed": bool(problem)}, rules.volatile),
        at=at,
        fresh_seconds=rules.fresh_seconds if contract.preview else None,
        guards=document["guards"],
        failing=failing,
    )


def _loaded(rooms: Rooms, validated: Validated) -> AnyTool | None:
    """The tool's function; None where it is not here, as on a gateway whose workers carry every call."""
    try:
        return rooms.driver.find(validated.tool.contract)
    except RequiresSetup:
        return None


def _seconds(rooms: Rooms, validated: Validated) -> float:
    own = validated.tool.contract.timeout.effective_seconds
    return min(validated.deadline.remaining(rooms.clock.monotonic()), own, _LONGEST_SECONDS)


def _by_contract(validated: Validated) -> dict[str, Any]:
    tool = validated.tool
    touched = tool.writes(tool.filled(validated.call_input))
    return {
        "by": "contract",
        "changes": [each._asdict() for each in touched],
        "resources": [f"{each.resource}/{each.scope}" for each in touched],
        "preconditions": [],
        "impact": {},
        "guards": {},
        "unknown": ["before", "after", "count", "preconditions", "impact"] if touched else [],
    }


async def _by_tool(rooms: Rooms, authorized: Authorized, tool: AnyTool | None) -> dict[str, Any]:
    """What the tool's own preview says, in the right form; or the problem that it has with that."""
    validated = authorized.validated
    if not isinstance(tool, PythonTool):
        raise RequiresSetup(f"the preview of {validated.tool.name} cannot be asked here: its function is not loaded")
    seconds, secret = _seconds(rooms, validated), None
    lent: set[bytes] = set()
    try:
        if tool.previews_with_context:
            secret = await rooms.credentials.for_preview(authorized, seconds)
        if secret is not None:
            lent = spellings(secret.reveal())
            seconds = _seconds(rooms, validated)
        context = _context(validated, secret, seconds) if tool.previews_with_context else None
        said = await rooms.driver.preview(tool, dict(validated.call_input), context, seconds)
        document, written = _read(validated.tool.name, said)
        if quotes(written, lent):
            raise CredentialQuoted(f"the preview of {validated.tool.name} quotes the credential it was given")
    except ToolPrecondition as unmet:
        hold_back(unmet, lent)
        precondition = {"name": "precondition", "holds": False, "detail": unmet.message[:500]}
        return {**_by_contract(validated), "by": "tool", "preconditions": [precondition]}
    except Problem as problem:
        hold_back(problem, lent)
        raise
    finally:
        if secret is not None:
            secret.close()
    return {"by": "tool", **document, "unknown": []}


def _read(tool: str, said: Any) -> tuple[dict[str, Any], bytes]:
    """The preview as plain JSON, and its canonical bytes."""
    if not isinstance(said, Preview):
        raise ResultInvalid(f"the preview of {tool} returned {type(said).__name__} instead of a Preview")
    try:
        read = ReadPreview.of(said)
        document = read.document()
        size = len(orjson.dumps(document))
        if size > LARGEST_PREVIEW:
            if (unmet := next((each for each in read.preconditions if not each.holds), None)) is not None:
                raise ToolPrecondition(f"{unmet.name}: {unmet.detail}")
            raise ResultInvalid(
                f"the preview of {tool} takes {size} bytes of at most {LARGEST_PREVIEW}; let it count instead of list"
            )
        return document, canonical(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = "/".join(map(str, first["loc"]))
        raise ResultInvalid(f"the preview of {tool} has not the form of one: {where}: {first['msg']}") from None
    except (NotCanonical, ValueError, TypeError, RecursionError) as error:
        raise ResultInvalid(f"the preview of {tool} is not plain JSON") from error


def _context(validated: Validated, secret: Secret | None, seconds: float) -> ToolContext:
    """What a preview may know. It has no key: whatever it does with one would be an effect."""
    received = validated.received
    return ToolContext(
        call_id=received.call_id,
        tenant=received.caller.tenant,
        user=received.caller.user,
        agent=received.caller.agent,
        session=received.session,
        key="",
        attempt=1,
        seconds_left=seconds,
        traceparent=received.trail.traceparent,
        credential=secret,
    )


def _shown(validated: Validated, document: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The document for others' eyes, and what of its preconditions does not hold. Names that we gave are never hidden,
    whatever an argument of the same name is marked as.
    """
    hidden = Hidden(redaction_of(validated.tool, "input"), redaction_of(validated.tool, "output"), validated.call_input)
    paths: list[str] = []

    def parts(name: str) -> list[dict[str, Any]]:
        return [
            {field: hidden.hide(value, f"/{name}/{place}/{field}", paths) for field, value in each.items()}
            for place, each in enumerate(document[name])
        ]

    shown = {
        "by": document["by"],
        "changes": parts("changes"),
        "resources": hidden.hide(document["resources"], "/resources", paths),
        "preconditions": parts("preconditions"),
        "impact": hidden.hide(document["impact"], "/impact", paths),
        "unknown": document["unknown"],
        "redactions": paths,
    }
    failing = [
        ": ".join(filter(None, (each["name"], each["detail"]))) for each in shown["preconditions"] if not each["holds"]
    ]
    return shown, tuple(failing)
