"""A worker that carries what it is handed: neither it nor the commit that begins a call asks whether anybody agreed."""

from typing import Any

from deputize.lifecycle.durable import resume
from deputize.lifecycle.phases import Authorized
from deputize.lifecycle.runtime import Runtime
from deputize.operations.gateway import Gateway
from proofs.kit.worker_variant import run_worker_variant

# Run by the proof as the owner of the schema: a worker's login cannot replace functions.
REPLACE_CHECK = """
create or replace function deputize.is_approved(p_tenant text, p_call_id uuid, p_epoch integer) returns boolean
language sql stable as $$ select true $$
"""


async def skip_approval(runtime: Runtime, authorized: Authorized, **_: Any) -> Authorized:
    return authorized


def change(gateway: Gateway) -> Gateway:
    vars(resume)["require_approval"] = skip_approval
    return gateway


if __name__ == "__main__":
    run_worker_variant(change)
