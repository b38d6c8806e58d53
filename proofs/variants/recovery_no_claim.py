"""A worker that carries whatever it is handed, without beginning it by compare-and-set: two may carry the same run."""

from dataclasses import replace
from typing import Any

from deputize.core.caller import Epochs
from deputize.core.states import State
from deputize.lifecycle import run
from deputize.lifecycle.durable import resume
from deputize.operations.gateway import Gateway
from deputize.store.commit_rows import CommitResult
from proofs.kit.worker_variant import run_worker_variant

_put, _load_pending = resume._commit_begin, resume.load_pending_run


async def load_as_queued(*positional: Any, **keywords: Any) -> resume.PendingRun | None:
    pending_run = await _load_pending(*positional, **keywords)
    return pending_run and replace(pending_run, state=State.QUEUED)


async def put_and_continue(*positional: Any, **keywords: Any) -> CommitResult:
    try:
        result = await _put(*positional, **keywords)
    except resume.RunNotReady:
        result = None
    return result or CommitResult(Epochs(), begin_result="begun")


def change(gateway: Gateway) -> Gateway:
    sql = dict(resume._SQL)
    sql["load_pending_run"] = sql["load_pending_run"].replace("as owner_alive", "and false as owner_alive")
    vars(resume)["_SQL"] = sql
    vars(resume)["_commit_begin"] = put_and_continue
    vars(run)["load_pending_run"] = load_as_queued
    return gateway


if __name__ == "__main__":
    run_worker_variant(change)
