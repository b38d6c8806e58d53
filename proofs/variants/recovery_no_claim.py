"""A worker that carries whatever it is handed, without beginning it by compare-and-set: two may carry the same run."""

from dataclasses import replace
from typing import Any

from deputize.core.caller import Epochs
from deputize.core.events import State
from deputize.lifecycle import resume, run
from deputize.lifecycle.gateway import Gateway
from deputize.store.rows import Committed
from proofs.fleet.worker import work_changed

_put, _waiting = resume._put, resume.waiting


async def as_if_new(*positional: Any, **named: Any) -> resume.Waiting | None:
    found = await _waiting(*positional, **named)
    return found and replace(found, state=State.QUEUED)


async def put_and_go_on(*positional: Any, **named: Any) -> Committed:
    try:
        committed = await _put(*positional, **named)
    except resume.NotNow:
        committed = None
    return committed or Committed(Epochs(), began="begun")


def change(gateway: Gateway) -> Gateway:
    sql = dict(resume._SQL)
    sql["run_to_go_on"] = sql["run_to_go_on"].replace("as owner_alive", "and false as owner_alive")
    vars(resume)["_SQL"] = sql
    vars(resume)["_put"] = put_and_go_on
    vars(run)["waiting"] = as_if_new
    return gateway


if __name__ == "__main__":
    work_changed(change)
