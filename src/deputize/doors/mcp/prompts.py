"""`prompts/list`, `prompts/get` and `completion/complete`: what was agreed to of servers, for who may have it.

A prompt is called `server__prompt`, as tools are. Each of these is one call of a contract of the server. Above:
`door.py`. Below: `offered.py`, `reading.py`.
"""

from typing import Any, Final

from deputize.core.errors import NotOffered
from deputize.core.mcp import INVALID_PARAMS
from deputize.core.offers import Said
from deputize.core.servers import COMPLETE, GET_PROMPT, Kind
from deputize.doors.mcp.faces import RpcError
from deputize.doors.mcp.offered import Source, prompt_of, prompt_shown, source_of, sources
from deputize.doors.mcp.reading import read, refuse
from deputize.doors.mcp.resources import listed
from deputize.doors.mcp.turn import Turn

_SHOWN: Final = ("title", "description", "arguments")


async def list_prompts(turn: Turn) -> dict[str, Any]:
    def shown(name: str, source: Source, said: Said) -> dict[str, Any]:
        return {"name": prompt_shown(name, source), **{each: said[each] for each in _SHOWN if each in said}}

    return await listed(turn, "prompts", "name", Kind.PROMPT, await sources(turn, GET_PROMPT), shown)


async def get_prompt(turn: Turn) -> dict[str, Any]:
    name = _text(turn.asked.params, "name")
    arguments = turn.asked.params.get("arguments")
    if arguments is not None and not isinstance(arguments, dict):
        raise RpcError(INVALID_PARAMS, "arguments must be an object with a text for each argument")
    try:
        source, own = prompt_of(name, await sources(turn, GET_PROMPT))
    except NotOffered as problem:
        raise await refuse(turn, problem, name=name) from problem
    return await read(turn, source, {"name": own, **({"arguments": arguments} if arguments else {})}, name=name)


async def complete(turn: Turn) -> dict[str, Any]:
    reference, argument, context = (turn.asked.params.get(each) for each in ("ref", "argument", "context"))
    if not isinstance(reference, dict) or not isinstance(argument, dict) or not isinstance(context, dict | None):
        raise RpcError(INVALID_PARAMS, "ref and argument must be objects, and so must context be, if it is there")
    among = await sources(turn, COMPLETE)
    by_name = reference.get("type") == "ref/prompt"
    shown = _text(reference, "name" if by_name else "uri")
    try:
        source, own = prompt_of(shown, among) if by_name else source_of(shown, among)
    except NotOffered as problem:
        raise await refuse(turn, problem, ref=shown) from problem
    asked = {"ref": {"type": reference.get("type"), "name" if by_name else "uri": own}, "argument": argument}
    return await read(turn, source, {**asked, **({"context": context} if context else {})}, ref=shown)


def _text(params: dict[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise RpcError(INVALID_PARAMS, f"{name} must be a text")
    return value
