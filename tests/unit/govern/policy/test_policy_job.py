"""Large sets of policies are parsed and checked in another process, with the same result as here."""

from collections.abc import Callable

import pytest

from deputize.core.errors import PolicyInvalid
from deputize.execute.job_processes import JobProcesses
from deputize.govern.policy.checks.validate import validate_policies
from deputize.govern.policy.policy_job import parse_off_loop, validate_off_loop
from deputize.govern.policy.policy_parser import (
    PolicyFile,
    list_unparsed_texts,
    parse_rule,
    parse_with_diagnostics,
    rule_from_json,
    rule_to_json,
)

_ASKING_RULE = """@id("ask-for-refunds") @reason("Refunds are looked at.") @decision("ask")
@approvers("oncall, leads") @quorum("2") @deadline("30m") @step_up("hwk")
permit (principal, action, resource == Tool::"crm.refund") when { context.arguments has amount };"""
_RULES = (
    _ASKING_RULE,
    '@id("all") permit (principal, action == Action::"call", resource in Namespace::"crm");',
    '@id("none") forbid (principal == User::"ann", action, resource) unless { resource.effects == "read" };',
    "permit (principal, action, resource);",
    '@id("broken") permit (principal, action',
)


def _build_files(marker: str, count: int) -> list[PolicyFile]:
    rules = [f'@id("{marker}-{n}") forbid (principal == User::"{marker}-{n}", action, resource);' for n in range(count)]
    return [PolicyFile(path="a.cedar", text="\n".join(rules)), PolicyFile(path="b.cedar", text="permit (x);")]


@pytest.mark.parametrize("text", _RULES)
def test_a_parsed_rule_is_the_same_after_its_way_through_json(text: str) -> None:
    assert rule_from_json(rule_to_json(parse_rule(text))) == parse_rule(text)


@pytest.mark.requirement("GOV-2")
async def test_a_large_set_is_parsed_and_checked_in_another_process_with_the_same_result() -> None:
    files = _build_files("apart", 200)
    processes = JobProcesses(max_processes=1)
    jobs: list[str] = []

    async def run_job(job: Callable[[bytes], bytes], payload: bytes) -> bytes | None:
        jobs.append(job.__name__)
        return await processes.run_job("acme", job, payload, seconds=30)

    try:
        await parse_off_loop(files, run_job)
        assert list_unparsed_texts(files) == []
        findings = await validate_off_loop(files, {}, {"Tool": {"crm.refund": ()}}, run_job)
    finally:
        await processes.aclose()
    assert jobs == ["parse_rules_job", "validate_policies_job"]
    assert findings == validate_policies(files, {}, known_names={"Tool": {"crm.refund": ()}})
    assert [each.file for each in findings.errors] == ["b.cedar"]
    assert len(parse_with_diagnostics(files)[0]) == 200


async def test_what_is_parsed_already_is_not_sent_again() -> None:
    files = _build_files("again", 200)
    parse_with_diagnostics(files)

    async def run_job(job: Callable[[bytes], bytes], payload: bytes) -> bytes | None:
        raise AssertionError(job)

    await parse_off_loop(files, run_job)


async def test_a_set_that_costs_too_much_is_refused_and_says_so() -> None:
    async def run_job(job: Callable[[bytes], bytes], payload: bytes) -> bytes | None:
        return None

    files = _build_files("costly", 200)
    await parse_off_loop(files, run_job)
    assert len(list_unparsed_texts(files[:1])) == 200
    with pytest.raises(PolicyInvalid, match="more time or memory than is allowed"):
        await validate_off_loop(files, {}, {}, run_job)


async def test_a_small_set_is_checked_here() -> None:
    async def run_job(job: Callable[[bytes], bytes], payload: bytes) -> bytes | None:
        raise AssertionError(job)

    files = [PolicyFile(path="a.cedar", text=_ASKING_RULE)]
    await parse_off_loop(files, run_job)
    assert await validate_off_loop(files, {}, {}, run_job) == validate_policies(files, {})
