"""A new version is judged beside the registered ones, where it cannot hold the event loop."""

from collections.abc import Callable
from typing import Any

import pytest

from deputize.catalog.compatibility.release_job import judge_release
from deputize.catalog.snapshot import ToolEntry, ToolVersion
from deputize.core.contract.contract import Contract, LifecycleState
from deputize.core.contract.serialized_contract import SerializedContract
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("CON-8")
LARGE = {"note": "long " * 1_000}


class JobLog:
    """Runs jobs here, and counts them."""

    def __init__(self, *, overruns: bool = False) -> None:
        self.count = 0
        self._overruns = overruns

    async def run_job(self, job: Callable[[bytes], bytes], payload: bytes) -> bytes | None:
        self.count += 1
        return None if self._overruns else job(payload)


def make_entry(*contracts: Contract, state: LifecycleState = LifecycleState.AVAILABLE) -> ToolEntry:
    raws = [SerializedContract.from_contract(each) for each in contracts]
    versions = {
        each.contract.version: ToolVersion(version=each.contract.version, digest=each.digest, raw=each.raw, state=state)
        for each in raws
    }
    return ToolEntry.from_versions(contracts[0].full_name, versions)


@pytest.mark.parametrize(
    ("more", "jobs"), [({}, 0), ({"annotations": LARGE}, 1), ({"output_schema": {"anyOf": [{"type": "object"}]}}, 1)]
)
async def test_the_judgement_is_the_same_in_another_process(more: dict[str, Any], jobs: int) -> None:
    log, entry = JobLog(), make_entry(make_contract(**more))
    breaking = make_contract(version="1.0.1", effects="write", **more)
    reasons = await judge_release(breaking, entry, log.run_job)
    assert [each.path for each in reasons] == ["/version", "/effects"]
    assert log.count == jobs


async def test_a_first_version_a_known_one_and_one_after_retired_ones_are_not_compared() -> None:
    log = JobLog()
    breaking = make_contract(version="1.0.1", effects="write")
    assert await judge_release(breaking, None, log.run_job) == []
    assert await judge_release(breaking, make_entry(make_contract(version="1.0.1")), log.run_job) == []
    retired = make_entry(make_contract(), state=LifecycleState.RETIRED)
    assert await judge_release(breaking, retired, log.run_job) == []
    disabled = make_entry(make_contract(), state=LifecycleState.DISABLED)
    assert await judge_release(breaking, disabled, log.run_job)


async def test_what_cannot_be_compared_is_refused_unless_it_announces_a_break() -> None:
    entry, log = make_entry(make_contract(annotations=LARGE)), JobLog(overruns=True)
    (reason,) = await judge_release(make_contract(version="1.1.0"), entry, log.run_job)
    assert "cannot be compared" in reason.reason
    assert await judge_release(make_contract(version="2.0.0"), entry, log.run_job) == []
    unreadable = ToolVersion(
        version="1.0.0", digest="sha256:0", raw=b'{"from":"elsewhere"}', state=LifecycleState.AVAILABLE
    )
    entry = ToolEntry("crm.get_user", (unreadable,))
    (reason,) = await judge_release(make_contract(version="1.1.0"), entry, JobLog().run_job)
    assert "cannot be compared" in reason.reason
