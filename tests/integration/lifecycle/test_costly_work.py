"""What callers, tools and administrators make costly is done in other processes, and no thread waits for it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any, Union

import pytest
import pytest_asyncio
from pydantic import BaseModel, Field

from deputize import tool
from deputize.catalog import schema_errors
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.contract.expectation import AgentExpectation, ExpectedSide
from deputize.core.errors import MalformedRequest, RateLimited, ToolFailed
from deputize.core.hooks import HookCall, LoadedHook, Update
from deputize.core.states import State
from deputize.govern.limits.request_limits import NEGOTIATIONS_PER_MINUTE
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.operations.admin.policy import backtests
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, parse_body
from tests.support.lossy_tools import COSTLY_PATTERN

pytestmark = pytest.mark.requirement("GOV-8")
Fails = Annotated[bool, Field(description="Whether it fails", examples=[False])]
COSTLY_RULES = '@id("open") permit (principal, action, resource);' + "".join(
    f'@id("r{number}") forbid (principal, action, resource) '
    f'when {{ context.facts has name && context.facts.name like "*{"a" * 900}{number}" }};'
    for number in range(3)
)


class Sum(BaseModel):
    left: "Node"


class Product(BaseModel):
    left: "Node"


Node = Union[Sum, Product, float]  # noqa: UP007 -- the alias is recursive
Expression = Annotated[Node, Field(description="What to compute", examples=[1.0])]
Name = Annotated[
    str, Field(description="Who asks", examples=["ana"], max_length=20_000, json_schema_extra={"x-policy": True})
]


def nest(levels: int) -> Any:
    value: Any = "no number"
    for _ in range(levels):
        value = {"left": value}
    return value


@tool(effects="read", namespace="lab", version="1.0.0", examples=[{"expression": 1.0, "name": "ana"}])
async def compute(expression: Expression, name: Name) -> Sum:
    """Compute an expression, or return what nobody can."""
    return nest(60) if name == "wrong" else {"left": 1.0}  # type: ignore[return-value] # a tool may return anything


@tool(
    effects="read", namespace="lab", version="1.0.0",
    error_schema={"type": "object", "properties": {"details": {"additionalProperties": {"pattern": COSTLY_PATTERN}}}},
    predicates=[{"name": "spelled", "holds": {"properties": {"output": {"pattern": COSTLY_PATTERN}}}}],
)  # fmt: skip
async def spell(
    text: Annotated[str, Field(description="What to spell", examples=["a"], pattern=COSTLY_PATTERN)], fails: Fails
) -> str:
    """Spell a text at length, in its result or in its error."""
    if fails:
        raise ToolFailed("it cannot be spelled", details={"text": "a" * 8_000})
    return "a" * 8_000


async def lengthen(call: HookCall) -> Update | None:
    return Update(arguments={"text": "a" * 8_000}) if call.arguments["text"] == "b" else None


LENGTHEN = LoadedHook(
    name="lengthen", moment="before", function=lengthen, is_async=True, tools="lab.spell", seconds=30.0
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayLab]:
    folder: Path = tmp_path_factory.mktemp("costly")
    tools = [getattr(each, ATTRIBUTE) for each in (compute, spell)]
    async with open_lab(module_database, folder, tools=tools, hooks=(LENGTHEN,)) as opened:
        yield opened


@pytest.fixture
def _refuse_lists_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("errors of a recursive schema are not listed in the gateway")

    monkeypatch.setattr(schema_errors, "iterate_errors", refuse)


@pytest.mark.usefixtures("_refuse_lists_here")
async def test_few_errors_of_a_recursive_type_are_described(lab: GatewayLab) -> None:
    answer = await lab.call("compute", {"expression": nest(3), "name": "ana"})
    assert answer.state is State.VALIDATION_FAILED
    assert parse_body(answer)["error"]["details"]["errors"][0]["path"] == "/expression"


@pytest.mark.usefixtures("_refuse_lists_here")
async def test_a_deep_wrong_document_of_a_recursive_type_delays_nobody(lab: GatewayLab) -> None:
    arguments = asyncio.create_task(lab.call("compute", {"expression": nest(60), "name": "ana"}))
    result = asyncio.create_task(lab.call("compute", {"expression": 1.0, "name": "wrong"}))
    assert (await lab.call("compute", {"expression": 1.0, "name": "ana"})).state is State.SUCCEEDED
    assert not arguments.done()
    error = parse_body(await arguments)["error"]
    assert (error["slug"], error["details"]["errors"]) == ("schema-violation", [])
    assert parse_body(await result)["error"]["slug"] == "result-invalid"


@pytest.mark.parametrize(
    ("text", "fails", "jobs", "slug", "refusal"),
    [
        ("a", False, ["find_failed_job"], None, "lab.spell takes too long to check against its predicates"),
        ("b", False, ["validate_job", "find_failed_job"], None, "changed the arguments, and they take too long"),
        ("a", True, ["validate_job"], "tool-failed", "an error that takes too long to check against its error schema"),
    ],
    ids=["predicates", "update of a hook", "error of a tool"],
)  # fmt: skip
async def test_what_is_costly_to_check_is_checked_in_another_process_and_refused_if_that_takes_too_long(
    lab: GatewayLab, monkeypatch: pytest.MonkeyPatch, text: str, fails: bool, jobs: list[str], slug: str | None,
    refusal: str,
) -> None:  # fmt: skip
    run_job, job_names = lab.runtime.jobs.run_job, list[str]()

    async def note_job(tenant: str, job: Callable[[bytes], bytes], payload: bytes) -> bytes | None:
        job_names.append(job.__name__)
        return await run_job(tenant, job, payload)

    async def run_out_of_time(*_: Any) -> None:
        return None

    monkeypatch.setattr(lab.runtime.jobs, "run_job", note_job)
    answer = await lab.call("spell", {"text": text, "fails": fails})
    assert (job_names, None if answer.state is State.SUCCEEDED else error_slug(answer)) == (jobs, slug)
    monkeypatch.setattr(lab.runtime.jobs, "run_job", run_out_of_time)
    assert refusal in parse_body(await lab.call("spell", {"text": text, "fails": fails}))["error"]["message"]


async def test_a_negotiation_with_costly_patterns_is_refused_and_negotiations_are_counted(lab: GatewayLab) -> None:
    caller = await lab.make_caller("agent")
    patterns = {f"p{each}": {"pattern": rf"[\w\pL]{{{150 + each}}}"} for each in range(50)}
    hostile = AgentExpectation(input=ExpectedSide(schema={"properties": patterns}))
    with pytest.raises(MalformedRequest, match="pattern"):
        await lab.gateway.negotiations.negotiate_version(caller, "lab.compute", "*", hostile)
    plain = AgentExpectation(input=ExpectedSide(fields=("/name",)))
    for _ in range(NEGOTIATIONS_PER_MINUTE - 1):
        await lab.gateway.negotiations.negotiate_version(caller, "lab.compute", "*", plain)
    with pytest.raises(RateLimited, match="30 negotiations"):
        await lab.gateway.negotiations.negotiate_version(caller, "lab.compute", "*", plain)


async def test_no_thread_waits_while_costly_rules_of_a_backtest_are_evaluated(
    lab: GatewayLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_job, loop, free_threads = lab.runtime.admin_jobs.run_job, asyncio.get_running_loop(), list[bool]()

    async def look_for_threads(
        tenant: str, job: Callable[[bytes], bytes], payload: bytes, **limits: Any
    ) -> bytes | None:
        if job.__name__ == "evaluate_job":
            # The only thread of all backtests, while one of them waits for this job.
            async with asyncio.timeout(30):
                await loop.run_in_executor(backtests._replay_pool, free_threads.append, True)
        return await run_job(tenant, job, payload, **limits)

    await lab.call("compute", {"expression": 1.0, "name": "a" * 8_000})
    monkeypatch.setattr(lab.runtime.admin_jobs, "run_job", look_for_threads)
    files = (PolicyFile(path="draft.cedar", text=COSTLY_RULES),)
    lines = [line async for line in await lab.gateway.backtests.start_backtest(await lab.make_admin(), files)]
    assert lines[-1]["result"]["unrecorded"] == 0
    assert lines[-1]["result"]["questions"] >= 1
    assert free_threads
