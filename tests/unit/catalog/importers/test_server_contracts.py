"""Contracts of a server's tools are the same whether they are built here or in another process."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from deputize.catalog.importers.server_contracts import (
    RegisteredNames,
    build_contracts,
    build_contracts_off_loop,
)
from deputize.core.errors import UpstreamUnavailable
from deputize.core.mcp.servers import GET_PROMPT, Definition, DefinitionKind
from deputize.core.settings import McpServerSettings
from deputize.execute.job_processes import JobProcesses

_NOTHING = RegisteredNames(by_tool={}, by_method={}, newest_versions={})
_PROGRAM = McpServerSettings(
    name="shop", command=("shop-server",), env={"API_KEY": "s3cret"}, reads=("get_*",), prompts=("*",),
    credential="vault", secret="shop-key", secret_env="SHOP_KEY",
)  # fmt: skip


def _make_tool(name: str, description: str = "Looks something up.") -> Definition:
    properties = {f"p{number}": {"type": "string"} for number in range(100)}
    schema = {"type": "object", "properties": properties}
    return Definition.from_declaration({"name": name, "description": description, "inputSchema": schema})


_DEFINITIONS = [
    _make_tool("get_order"),
    _make_tool("getOrder"),
    _make_tool("pay"),
    Definition.from_declaration(
        {"name": "broken", "inputSchema": {"type": "object", "properties": {"a": {"type": "no such type"}}}}
    ),
    Definition.from_declaration({"name": GET_PROMPT}, DefinitionKind.METHOD),
    Definition.from_declaration({"name": "hello"}, DefinitionKind.PROMPT),
]


@pytest.fixture
async def processes() -> AsyncIterator[JobProcesses]:
    processes = JobProcesses(max_processes=1)
    yield processes
    await processes.aclose()


async def test_another_process_builds_the_same_contracts(processes: JobProcesses) -> None:
    registered_names = RegisteredNames(by_tool={"pay": "pay_bill"}, by_method={}, newest_versions={"pay_bill": "2.1.0"})
    payloads: list[bytes] = []

    async def run_job(job: Callable[[bytes], bytes], payload: bytes) -> bytes | None:
        payloads.append(payload)
        return await processes.run_job("acme", job, payload)

    built_contracts = await build_contracts_off_loop(_PROGRAM, _DEFINITIONS, registered_names, run_job)
    here = build_contracts(_PROGRAM, _DEFINITIONS, registered_names)
    assert built_contracts.contracts == here.contracts
    assert {item: (each.message, each.details) for item, each in built_contracts.rejections.items()} == {
        item: (each.message, each.details) for item, each in here.rejections.items()
    }
    assert set(built_contracts.rejections) == {"tool:broken"}
    assert "prompt:hello" not in built_contracts.contracts
    assert b"s3cret" not in payloads[0]


def test_a_known_tool_keeps_its_name_and_gets_the_next_major_version() -> None:
    registered_names = RegisteredNames(by_tool={"pay": "pay_bill"}, by_method={}, newest_versions={"pay_bill": "2.1.0"})
    contract = build_contracts(_PROGRAM, [_make_tool("pay")], registered_names).contracts["tool:pay"].contract
    assert (contract.full_name, contract.version) == ("shop.pay_bill", "3.0.0")


async def test_what_takes_too_long_is_not_built() -> None:
    async def run_job(job: Any, payload: bytes) -> None:
        return None

    with pytest.raises(UpstreamUnavailable, match="the definitions of shop take too long to check"):
        await build_contracts_off_loop(_PROGRAM, _DEFINITIONS, _NOTHING, run_job)


async def test_a_job_that_overruns_ends(processes: JobProcesses) -> None:
    run_job = partial(processes.run_job, "acme", seconds=0)
    with pytest.raises(UpstreamUnavailable):
        await build_contracts_off_loop(_PROGRAM, [_make_tool(f"t{n}") for n in range(2000)], _NOTHING, run_job)
