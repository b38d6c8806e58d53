"""Take from a sandbox all that the kernel counts by user, and see what another one and a process outside miss.

It is done by a supervisor of root and by one of a plain user with subordinate ones, where this host has it; and once
more with one user for all, which is what sandboxes without users of their own do to each other.
"""

import asyncio
import json
import os
import pwd
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox

NAME = "sandbox_neighbours"
PROMISE = "A program in a sandbox takes nothing from others, and leaves no file that runs as its owner."
_SHARED: Final = "one user for all"
_OUTSIDE: Final = "without the filter"
_RESOURCES: Final = 5
_SECONDS: Final = 400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What one user's supervisor did: `attacks` and `left` as the arena prints them."""

    user: str
    is_shared: bool
    attacks: dict[str, Any]
    left: dict[str, list[str]]


async def prove(sandbox: Sandbox) -> Verdict:
    observations = []
    for uid in find_users():
        user = "root" if uid == 0 else "a plain user"
        for mode in ("own", "shared"):
            observed = await asyncio.to_thread(run_arena, uid, mode)
            if observed["shared_user"] is not None and mode == "own":
                sandbox.log(f"{user} has no users for sandboxes here: {observed['shared_user']}")
                continue
            for name, attack in observed["attacks"].items():
                sandbox.log(f"{user}, {mode}, {name}: {attack}")
            observations.append(
                Observation(
                    user=user, is_shared=mode == "shared", attacks=observed["attacks"], left=observed["left"]
                )
            )  # fmt: skip
    return judge(observations)


def find_users() -> list[int]:
    """Find as whom it can be tried: this user, and as root one with subordinate users."""
    if os.geteuid() != 0:
        return [os.geteuid()]
    try:
        owners = {line.split(":")[0] for line in Path("/etc/subuid").read_text().splitlines()}
    except OSError:
        owners = set()
    plain = [each.pw_uid for each in pwd.getpwall() if each.pw_uid >= 1_000 and each.pw_name in owners]
    return [0, *plain[:1]]


def run_arena(uid: int, mode: str) -> dict[str, Any]:
    """Run the arena as a user; raise CalledProcessError if it breaks off."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chown(folder, uid, uid)
        Path(folder).chmod(0o755)
        user: dict[str, Any] = {"user": uid, "group": uid, "extra_groups": ()} if uid != os.geteuid() else {}
        ended = subprocess.run(
            [sys.executable, "-m", "proofs.sandbox_neighbours.arena", folder, mode],
            stdout=subprocess.PIPE, text=True, check=True, timeout=_SECONDS,
            env={"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each), "HOME": "/"},
            **user,
        )  # fmt: skip
    observed: dict[str, Any] = json.loads(ended.stdout)
    return observed


def judge(observations: list[Observation]) -> Verdict:
    """Count what others missed. What root misses outside says nothing: it has no such limits."""
    own = [each for each in observations if not each.is_shared]
    hits = [(each.user, victim, name) for each in own for victim, name in list_hits(each)]
    hit_in_control = {name for each in observations if each.is_shared for _, name in list_hits(each)}
    left = [name for each in own for name in each.left["sandbox"]]
    figures: dict[str, Figure] = {
        "users": len(own),
        "resources": min((len(each.attacks) for each in own), default=0),
        "not_taken": sum(not attack["was_taken"] for each in own for attack in each.attacks.values()),
        "missed_by_others": len(hits),
        "files_that_run_as_their_owner": len(left),
        "resources_missed_with_one_user": len(hit_in_control),
    }
    return Verdict(
        figures=figures,
        controls={
            _SHARED: len(hit_in_control) >= _RESOURCES - 1,
            _OUTSIDE: all(len(each.left["outside"]) == 2 for each in own) and bool(own),
        },
        notes=[f"{user}: {name} missed {'in another sandbox' if victim == 'sandbox' else victim}"
               for user, victim, name in hits] + [f"left: {each}" for each in left],
    )  # fmt: skip


def list_hits(observation: Observation) -> list[tuple[str, str]]:
    return [
        (victim, name)
        for name, attack in observation.attacks.items()
        for victim, missed in attack["missed"].items()
        if name in missed
    ]
