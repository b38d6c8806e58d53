"""Answer a read from the cache, where its contract declares `freshness`.

The call has been validated, authorized and admitted by its limits, and its result is verified, passed to hooks and
recorded like that of any read: only the tool itself is not called.
"""

from collections.abc import Hashable
from dataclasses import replace

import orjson

from deputize.core.canonical import canonicalize
from deputize.core.contract.contract import Contract, MutationClass
from deputize.core.outcome import Result
from deputize.execute.read_cache import CachedRead, PendingRead
from deputize.lifecycle.phases import Authorized, Executed, Verified
from deputize.lifecycle.runtime import Runtime

# What they fetch belongs to the person, whatever the contract says about other callers.
_USER_CREDENTIALS = frozenset({"delegated", "link"})


async def find_cached_read(runtime: Runtime, authorized: Authorized) -> Executed | PendingRead | None:
    """Find the result of an equal read, or begin one whose result is kept; None if this one has nothing to do with it.

    An answer to a server's input requests is one of a kind, and a source that is compared with others must be asked.
    """
    validated, contract = authorized.validated, authorized.contract
    is_cacheable = contract.freshness is not None and contract.mutation_class is MutationClass.READ
    if not is_cacheable or validated.input_round is not None or validated.tool.name in runtime.source_rules:
        return None
    # Hooks may have changed the arguments since they were validated.
    arguments = canonicalize(validated.call_input) if validated.mutations else validated.canonical
    identity = _identify_caller(authorized, contract), runtime.driver.get_code_digest(contract)
    pending_read = runtime.read_cache.begin_read(authorized.call.tenant, contract, identity, arguments)
    cached_read = runtime.read_cache.find_result(authorized.call.tenant, pending_read, _choose_max_age(authorized))
    if cached_read is None:
        return pending_read
    if contract.auth.credential != "none":
        await _require_credential(runtime, authorized)
    runtime.metrics.record_cached_read(contract)
    return _build_execution(runtime, authorized, cached_read, pending_read)


def keep_read(runtime: Runtime, verified: Verified) -> None:
    """Keep the result of a read that fits its contract, for equal reads."""
    pending_read = verified.executed.pending_read
    if pending_read is None or verified.problem is not None or verified.input_requests is not None:
        return
    description = Result(payload=None) if verified.result is None else replace(verified.result, payload=None)
    tenant = verified.call.tenant
    runtime.read_cache.keep_result(tenant, verified.contract, pending_read, verified.canonical, description)


def _identify_caller(authorized: Authorized, contract: Contract) -> tuple[Hashable, ...]:
    """List all of a caller that a result may depend on; nothing where every caller of the tenant sees the same."""
    call = authorized.call
    caller, freshness = call.caller, contract.freshness
    if freshness is not None and freshness.shared_by == "tenant" and contract.auth.credential not in _USER_CREDENTIALS:
        return ()
    return (
        caller.user, caller.issuer, caller.agents, caller.agent_issuers, caller.scopes, caller.capabilities,
        caller.grants, caller.constraints, caller.ceiling, caller.task, call.session, call.request.client_capabilities,
    )  # fmt: skip


def _choose_max_age(authorized: Authorized) -> float:
    freshness, requested = authorized.contract.freshness, authorized.call.request.max_age_seconds
    assert freshness is not None, "only reads with declared freshness are looked up"
    # An answer of the same moment is none that its caller could have read anew.
    return freshness.max_age_seconds if requested is None else min(freshness.max_age_seconds, requested or -1)


async def _require_credential(runtime: Runtime, authorized: Authorized) -> None:
    """Require that the tool could still read for this caller: an account may be unlinked, a secret removed."""
    call = authorized.call
    seconds = authorized.validated.deadline.remaining_seconds(runtime.clock.monotonic())
    credential = await runtime.credentials.issue_for_attempt(authorized, call.call_id, seconds)
    if credential is not None:
        credential.close()


def _build_execution(
    runtime: Runtime, authorized: Authorized, cached_read: CachedRead, pending_read: PendingRead
) -> Executed:
    description, age = cached_read.description, runtime.read_cache.compute_age(cached_read)
    result = replace(
        description,
        payload=orjson.loads(cached_read.canonical)["result"],
        age_seconds=round(age + (description.age_seconds or 0), 3),
        # Nothing was used this time.
        cost=0.0, tokens=0, storage_bytes=0, network_bytes=0,
    )  # fmt: skip
    return Executed(
        authorized=authorized,
        claim=None,
        output=result,
        problem=None,
        attempts=0,
        seconds=runtime.clock.monotonic() - pending_read.began_at,
        is_cached=True,
    )
