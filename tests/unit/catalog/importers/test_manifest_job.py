"""A manifest from outside is judged where it cannot hold the event loop, with the same result."""

from collections.abc import Callable
from typing import Any

import pytest

from deputize.catalog.importers.manifest import parse_contract
from deputize.catalog.importers.manifest_job import judge_manifest
from deputize.core.errors import ToolNotAdmitted
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("REG-2")
SMALL = make_contract().model_dump(mode="json")
LARGE = {**SMALL, "annotations": {"note": "long " * 1_000}}


class JobLog:
    """Runs jobs here, and counts them."""

    def __init__(self, *, overruns: bool = False) -> None:
        self.count = 0
        self._overruns = overruns

    async def run_job(self, job: Callable[[bytes], bytes], payload: bytes) -> bytes | None:
        self.count += 1
        return None if self._overruns else job(payload)


@pytest.mark.parametrize(("manifest", "jobs"), [(SMALL, 0), (LARGE, 1)])
async def test_only_a_large_manifest_takes_a_job_and_the_contract_is_the_same(
    manifest: dict[str, Any], jobs: int
) -> None:
    log = JobLog()
    contract = await judge_manifest(manifest, log.run_job)
    assert contract.digest == parse_contract(manifest).digest
    assert log.count == jobs


@pytest.mark.parametrize("manifest", [SMALL, LARGE])
async def test_a_refusal_names_its_reasons_wherever_it_was_judged(manifest: dict[str, Any]) -> None:
    bad_schema = {"type": "object", "properties": {"a": {"pattern": "(?=a)"}}}
    with pytest.raises(ToolNotAdmitted) as refusal:
        await judge_manifest({**manifest, "input_schema": bad_schema}, JobLog().run_job)
    assert any("pattern" in reason["reason"] for reason in refusal.value.details["reasons"])


async def test_a_manifest_that_takes_too_long_is_refused() -> None:
    with pytest.raises(ToolNotAdmitted, match="takes too long"):
        await judge_manifest(LARGE, JobLog(overruns=True).run_job)
