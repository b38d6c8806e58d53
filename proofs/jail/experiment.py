"""Paths that should lead out of a folder, given to each file tool, and opens that race a thread which swaps folders for
links.

The tools are called without the gateway's check of their arguments, so that what is below it has to hold alone. What is
beside the folder is compared after each call. A reader that resolves a path first and opens it then is raced, too.
"""

import asyncio
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deputize import SemanticViolation, ToolConflict, ToolContext, ToolFailed, ToolPrecondition
from deputize.tools.files.declarations import declare_tools
from proofs.jail.arena import HARMLESS, INSIDE, SECRET, Arena, HostilePath, build_arena, list_hostile_paths
from proofs.jail.judge import Attempt, Outcome, compute_figures
from proofs.jail.races import count_naive_escapes, race
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox

NAME = "jail"
PROMISE = "The file tools read and change nothing outside of their folder, whatever a path says and whoever races them."

_REFUSALS = (SemanticViolation, ToolPrecondition, ToolConflict, ToolFailed)
_NEW = "new content"
_SECRET_DIGEST = hashlib.sha256(SECRET).hexdigest()
_INSIDE_DIGEST = hashlib.sha256(INSIDE).hexdigest()


async def prove(sandbox: Sandbox) -> Verdict:
    attempts = [
        attempt
        for name, has_openat2 in (("openat2", None), ("by name", False))
        for attempt in await asyncio.to_thread(try_paths, sandbox.folder / name, has_openat2=has_openat2)
    ]
    sandbox.log(f"{len(attempts)} attempts")
    arena = build_arena(sandbox.folder / "race")
    raced = await asyncio.to_thread(race, arena, sandbox.pick_size(quick=4_000, full=100_000))
    sandbox.log(f"{raced.inside} raced opens found what is inside, {raced.refused} were refused")
    escapes, opens = await asyncio.to_thread(count_naive_escapes, arena, 200_000)
    sandbox.log(f"the naive reader read the secret after {opens} opens" if escapes else "the naive reader held")
    wrong = [each for each in attempts if each.has_secret or each.has_changed_outside or each.outcome == "error"]
    return Verdict(
        figures=compute_figures(attempts, raced),
        controls={"jail_resolved_first": escapes > 0},
        notes=[*(f"{each.tool} {each.path!r}: {each.outcome}" for each in wrong[:5]), f"naive reader: {opens} opens"],
    )


def try_paths(folder: Path, *, has_openat2: bool | None) -> list[Attempt]:
    """Give each tool each hostile path in each of its arguments, and then a harmless one."""
    arena = build_arena(folder)
    tools = {each.__name__: each for each in declare_tools(arena.root, has_openat2=has_openat2)}
    attempts = []
    for hostile in list_hostile_paths(arena):
        for number, (tool, arguments) in enumerate(_list_calls(hostile.path)):
            key = f"{hostile.path!r} {number}"
            attempts.append(_try_call(arena, tools[tool], tool, hostile, {**arguments}, key))
    for number, (tool, arguments) in enumerate(_list_honest_calls()):
        honest = HostilePath(kind=HARMLESS, path="src/main.py")
        attempts.append(_try_call(arena, tools[tool], tool, honest, arguments, f"honest {number}"))
    shutil.rmtree(folder)
    return attempts


def _list_calls(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """List a call of each tool for each argument that is a path, with the digest that the secret has."""
    for tool in ("read", "list", "metadata"):
        yield tool, {"path": path}
    yield "search", {"path": path, "glob": "*"}
    yield "search", {"glob": path}
    yield "search_content", {"path": path, "pattern": "secret"}
    yield "diff", {"path": path, "to": "src/main.py"}
    yield "diff", {"path": "src/main.py", "to": path}
    for expected in (_SECRET_DIGEST, "absent"):
        yield "write", {"path": path, "content": _NEW, "expected_sha256": expected}
    yield "move", {"path": path, "to": "stolen", "expected_sha256": _SECRET_DIGEST}
    yield "move", {"path": "src/main.py", "to": path, "expected_sha256": _INSIDE_DIGEST}
    yield "delete", {"path": path, "expected_sha256": _SECRET_DIGEST}
    yield "restore", {"path": path, "to": path, "change": "0" * 32}
    yield "restore", {"path": "key", "to": path, "change": "0" * 32}
    yield "restore", {"path": "key", "to": "key", "change": path}


def _list_honest_calls() -> Iterator[tuple[str, dict[str, Any]]]:
    path = "honest/a.txt"
    content_digest = hashlib.sha256(_NEW.encode()).hexdigest()
    yield "write", {"path": path, "content": _NEW, "expected_sha256": "absent"}
    yield "read", {"path": path}
    yield "list", {"path": "honest"}
    yield "metadata", {"path": path}
    yield "search", {"glob": "*.txt"}
    yield "search_content", {"pattern": "new"}
    yield "move", {"path": path, "to": "honest/b.txt", "expected_sha256": content_digest}
    yield "diff", {"path": "honest/b.txt", "to": "honest/b.txt"}
    yield "delete", {"path": "honest/b.txt", "expected_sha256": content_digest}


def _try_call(
    arena: Arena, function: Callable[..., Any], tool: str, hostile: HostilePath, arguments: dict[str, Any], key: str
) -> Attempt:
    before = arena.snapshot_outside()
    if tool in ("write", "move", "delete", "restore"):
        arguments["context"] = _build_context(key)
    outcome: Outcome = "done"
    answer = ""
    try:
        answer = json.dumps(asdict(function(**arguments)))
    except _REFUSALS as problem:
        outcome, answer = "refused", str(problem) + json.dumps(dict(problem.details))
    except Exception as error:  # noqa: BLE001  # any other kind is what is counted
        outcome, answer = "error", repr(error)
    is_inside = _has_secret_inside(arena)
    _put_back(arena)
    return Attempt(
        tool=tool,
        kind=hostile.kind,
        path=hostile.path,
        outcome=outcome,
        has_secret=SECRET.decode() in answer or "root:x:0" in answer or is_inside,
        has_changed_outside=arena.snapshot_outside() != before,
    )


def _has_secret_inside(arena: Arena) -> bool:
    """Tell whether a call brought the secret into the folder, where the next one could read it."""
    path = arena.root / "key"
    return path.is_file() and path.read_bytes() == SECRET


def _put_back(arena: Arena) -> None:
    """Put back what is inside as it was: a call may have moved the one file to an odd, but allowed name."""
    (arena.root / "key").unlink(missing_ok=True)
    if not (arena.root / "src" / "main.py").exists():
        (arena.root / "src" / "main.py").write_bytes(INSIDE)


def _build_context(key: str) -> ToolContext:
    return ToolContext(
        call_id=key, tenant="dev", user="ana", agent="bot", session=None, key=key, attempt=1, seconds_left=30.0,
        traceparent=None,
    )  # fmt: skip
