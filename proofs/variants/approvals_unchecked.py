"""A worker that carries what it is handed: neither it nor the commit that begins a call asks whether anybody agreed."""

import asyncio
from typing import Any

import asyncpg

from deputize.core.settings import Settings
from deputize.lifecycle import resume
from deputize.lifecycle.approvals.approved import Yes
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.phases import Authorized
from deputize.lifecycle.rooms import Rooms
from proofs.fleet.worker import work_changed

_ALWAYS = """
create or replace function deputize.is_approved(p_tenant text, p_call uuid, p_epoch integer) returns boolean
language sql stable as $$ select true $$
"""


async def no_question(rooms: Rooms, authorized: Authorized, **_: Any) -> Yes:
    return Yes(authorized=authorized, guards={})


def change(gateway: Gateway) -> Gateway:
    vars(resume)["require_approval"] = no_question
    return gateway


async def _replace() -> None:
    url = Settings().database.url
    assert url is not None
    connection = await asyncpg.connect(url.get_secret_value())
    try:
        await connection.execute(_ALWAYS)
    finally:
        await connection.close()


if __name__ == "__main__":
    asyncio.run(_replace())
    work_changed(change)
