"""Run every attempt and every client in a closed network, and write what arrived: run by experiment.py.

python -m proofs.sandbox_egress.arena FOLDER ROUNDS
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import structlog

from deputize.composition.command_driver import build_command_driver
from deputize.core.contract.tools import ToolContext
from deputize.core.errors import OutcomeUnknown, Problem
from deputize.core.settings import KeySettings, SandboxSettings, ServiceSettings, Settings
from deputize.execute.drivers.command import CommandDriver
from proofs.kit.certificates import make_authority
from proofs.kit.closed_network import claim_all_addresses, replace_system_files
from proofs.kit.name_server import NameServer
from proofs.sandbox_egress import attempts
from proofs.sandbox_egress.clients import LISTED_HOST, OTHER_HOST, ClientCommand, list_clients
from proofs.sandbox_egress.judge import AROUND, LISTED, LISTED_PORT, Arrival, Attempt, Client
from proofs.sandbox_egress.recorder import Recorder
from proofs.sandbox_egress.sites import Sites
from proofs.sandbox_egress.unchecked_proxy import serve_unchecked

RESULT_FILE = "result.json"
_PYTHON = "/usr/bin/python3"
_NOBODY = 65_534
_SECONDS = 60.0
_METADATA = "169.254.169.254"
_OTHERS = (OTHER_HOST, "*.other.example", "*.shop.example", "*.example", "example", "localhost")
# What the listed names lead to, one list of answers for each question; those of the others never change.
_ZONE = {
    "shop.example": [["93.184.215.20"]],
    "turning.example": [["93.184.215.21"], [_METADATA]],
    "mixed.example": [["93.184.215.21", _METADATA]],
    "inside.example": [[_METADATA]],
    "mapped.example": [[f"::ffff:{_METADATA}"]],
    "translated.example": [["64:ff9b::a9fe:a9fe"]],
    "nowhere.example": [["0.0.0.0"]],
    "platform.example": [["168.63.129.16"]],
    **{
        name: [["93.184.216.34"]]
        for name in (
            OTHER_HOST, "shop.example.other.example", "evilshop.example", "deep.shop.example", "example",
            "c2vjcmv0lxdvcmrz.other.example", "by-library.other.example",
        )
    },
}  # fmt: skip


@dataclass(kw_only=True, slots=True)
class Arena:
    """The network, what listens in it, and the driver of commands."""

    folder: Path
    recorder: Recorder
    names: NameServer
    driver: CommandDriver
    facts: str

    async def take(self) -> tuple[Arrival, ...]:
        return await self.recorder.take()

    async def run(self, tool: str, **arguments: str) -> tuple[dict[str, Any], str]:
        """Call a command; return its result, and the error that it ended with."""
        self.names.forget_queries()
        contract = self.driver._declared["dev", "lab"][f"lab/{tool}"]
        context = ToolContext(
            call_id=secrets.token_hex(8), tenant="dev", user="ana", agent="bot", session=None, key="call", attempt=1,
            seconds_left=_SECONDS, traceparent=None,
        )  # fmt: skip
        try:
            return await self.driver.run(self.driver.find_tool(contract), arguments, context, _SECONDS), ""
        except Problem as problem:
            cause = problem.__cause__ if isinstance(problem, OutcomeUnknown) else problem
            number = cause.spec.e_number if isinstance(cause, Problem) else ""
            return {"stderr": problem.message, **problem.details}, number

    async def run_unchecked(self, name: str) -> tuple[Arrival, ...]:
        """Make an attempt without a sandbox, as its user, with the proxy that checks nothing."""
        self.names.forget_queries()
        source, user = Path(attempts.__file__).read_text(), _NOBODY if os.geteuid() == 0 else None
        await asyncio.to_thread(
            subprocess.run, [_PYTHON, "-S", "-", name, self.facts], check=False, input=source.encode(),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_SECONDS, env={}, cwd="/", user=user,
            group=user,
        )  # fmt: skip
        return await self.take()

    async def attempt(self, name: str) -> Attempt:
        control = await self.run_unchecked(name)
        return await self._attempt_again(name, control)

    async def attempt_again(self, first: Attempt) -> Attempt:
        return await self._attempt_again(first.name, first.control)

    async def _attempt_again(self, name: str, control: tuple[Arrival, ...]) -> Attempt:
        source, problem, connections = Path(attempts.__file__).read_text(), "", []
        arrivals: dict[str, tuple[Arrival, ...]] = {}
        # Without hosts there is no proxy to say anything to.
        for tool in ("listed", "alone") if name.partition(":")[0] in AROUND else ("listed",):
            result, number = await self.run(tool, source=source, name=name, facts=self.facts)
            if not result.get("stdout", "").startswith(attempts.BEGUN):
                problem = f"{tool}: {number} {result.get('stderr') or result}"
            connections += result.get("connections", [])
            arrivals[tool] = await self.take()
        return Attempt(
            name=name, control=control, listed=arrivals["listed"], alone=arrivals.get("alone", ()),
            is_recorded=any("refused" in each for each in connections), problem=problem,
        )  # fmt: skip

    async def use_client(self, number: int, client: ClientCommand) -> Client:
        await self.take()
        listed, _ = await self.run(f"client_{number}")
        _, refusal = await self.run(f"stranger_{number}")
        output = f"{listed.get('stdout', '')}{listed.get('stderr', '')}"
        return Client(
            name=client.name, has_reached=client.expected in output and "exit_code" in listed, refusal=refusal,
            arrivals=await self.take(), output=output[-500:],
        )  # fmt: skip


@contextlib.asynccontextmanager
async def open_arena(folder: Path) -> AsyncIterator[Arena]:
    claim_all_addresses()
    authority, tls = make_authority(folder, [*LISTED, *_OTHERS])
    replace_system_files(folder, authority)
    names = NameServer()
    for name, answers in _ZONE.items():
        names.add(name, *answers)
    names.start()
    word = secrets.token_hex(8)
    recorder = Recorder(tls, names, Sites(folder).answer)
    recorder.listen(folder, word)
    document = folder / "lab.json"
    document.write_bytes(orjson.dumps({"tools": _build_tools()}))
    service = {
        "name": "lab", "kind": "commands", "document": document,
        "sha256": hashlib.sha256(document.read_bytes()).hexdigest(),
    }  # fmt: skip
    settings = Settings(
        environment="development",
        services=(ServiceSettings.model_validate(service),),
        sandboxes=SandboxSettings(folder=folder / "sandboxes"),
        keys=KeySettings(master_file=folder / "keys" / "master"),
    )
    async with contextlib.AsyncExitStack() as stack:
        unchecked = await serve_unchecked(attempts.PORT)
        stack.callback(unchecked.close)
        facts = json.dumps({"socket": str(folder / "socket"), "name": word})
        yield Arena(
            folder=folder, recorder=recorder, names=names, driver=build_command_driver(settings, stack), facts=facts
        )


def _build_tools() -> list[dict[str, Any]]:
    hosts = {"network": {"allowed_domains": list(LISTED), "allowed_ports": [LISTED_PORT]}, "effects": "write"}
    text = {"type": "string"}
    attempt = {
        "command": [_PYTHON, "-S", "-", "{name}", "{facts}"],
        "stdin": "source",
        "input_schema": {"properties": {"source": text, "name": text, "facts": text}},
    }
    tools = [_build_tool("listed", **attempt, **hosts), _build_tool("alone", **attempt)]
    for number, client in enumerate(list_clients()):
        for name, host in (("client", LISTED_HOST), ("stranger", OTHER_HOST)):
            words = client.build_words(host)
            limits = {"memory": "1Gi", "processes": 64}
            tools.append(
                _build_tool(
                    f"{name}_{number}", command=words, environment=client.environment, limits=limits, input_schema={},
                    **hosts,
                )
            )  # fmt: skip
    return tools


def _build_tool(name: str, **fields: Any) -> dict[str, Any]:
    program = Path(fields["command"][0]).resolve()
    return {
        "name": f"lab.{name}", "description": "Reach what there is.", "timeout": 60,
        "sha256": hashlib.sha256(program.read_bytes()).hexdigest(), **fields,
        "command": [str(program), *fields["command"][1:]],
    }  # fmt: skip


async def run_arena(folder: Path, rounds: int) -> dict[str, Any]:
    async with open_arena(folder) as arena:
        clients = [await arena.use_client(number, each) for number, each in enumerate(list_clients())]
        first = [await arena.attempt(name) for name in attempts.ATTEMPTS]
        again = [await arena.attempt_again(each) for _ in range(rounds - 1) for each in first]
        return {"attempts": [asdict(each) for each in first + again], "clients": [asdict(each) for each in clients]}


def main() -> None:
    """Run the arena and write its result into its folder."""
    folder = Path(sys.argv[1])
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)
    (folder / RESULT_FILE).write_bytes(orjson.dumps(asyncio.run(run_arena(folder, int(sys.argv[2])))))


if __name__ == "__main__":
    main()
