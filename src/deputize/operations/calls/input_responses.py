"""Answer a server's input requests by the run's id, without a round token.

Answers continue the run in a new call, so a run is followed along the calls that continue it. The questions may be
answered one by one: answers are stored encrypted until none is missing; then the next call is made through the whole
lifecycle. `interfaces/mcp` uses this for tasks.
"""

import hashlib
from typing import Any, Final, NamedTuple

import asyncpg
import orjson

from deputize.core.caller import Caller, parse_agent_chain
from deputize.core.errors import CallNotFound, NotRetryable
from deputize.core.mcp.elicitation import InputRequest, InputResponses
from deputize.core.outcome import Outcome
from deputize.core.states import State
from deputize.lifecycle.elicitation.round_token import derive_round_key, validate_responses
from deputize.lifecycle.recording.audit import derive_claim_scope
from deputize.lifecycle.recording.stored_call import StoredInput
from deputize.lifecycle.run import Lifecycle
from deputize.operations.calls.queries import CallQueries, CallSummary, summarize_call
from deputize.store.keys import KeySet
from deputize.store.queries import load_statements

_SQL = load_statements("input_responses")
_CALLS = load_statements("calls")
_SEAL_KIND: Final = "input_responses"
# Stop following a server that requests input again and again.
_MAX_ROUNDS: Final = 100


class LatestCall(NamedTuple):
    """The newest call that continues a run: its summary, its envelope, and its open questions."""

    call: CallSummary
    envelope: dict[str, Any]
    open_questions: dict[str, InputRequest]


class InputResponder:
    def __init__(self, lifecycle: Lifecycle, calls: CallQueries) -> None:
        self._runtime, self._lifecycle, self._calls = lifecycle.runtime, lifecycle, calls

    async def load_latest_call(self, caller: Caller, call_id: str) -> LatestCall:
        """Load the newest call that continues a run."""
        row = await self._load_latest_row(caller, call_id)
        return LatestCall(summarize_call(row), *await self._load_open_questions(caller, row))

    async def _load_latest_row(self, caller: Caller, call_id: str) -> asyncpg.Record:
        for _ in range(_MAX_ROUNDS):
            row = await self._calls.load_row(caller, call_id)
            if row is None:
                break
            next_id = await self._find_continuation(row)
            if next_id is None:
                return row
            call_id = next_id
        raise CallNotFound("no run has this id, or it is not yours", details={"call_id": call_id[:64]})

    async def _find_continuation(self, row: asyncpg.Record) -> str | None:
        if State(row["state"]) is not State.NEEDS_INPUT:
            return None
        scope = derive_claim_scope(row["caller_user"], parse_agent_chain(row["caller_agent"]), row["tool"])
        key = hashlib.sha256(derive_round_key(str(row["id"])).encode()).digest()
        async with self._runtime.store.write_transaction() as connection:
            continuation_id = await connection.fetchval(_SQL["find_continuing_call"], row["tenant"], scope, key)
        return None if continuation_id is None else str(continuation_id)

    async def _load_open_questions(
        self, caller: Caller, row: asyncpg.Record
    ) -> tuple[dict[str, Any], dict[str, InputRequest]]:
        call_id = str(row["id"])
        envelope = (await self._calls.show_call(caller, call_id)).envelope.fields
        input_requests = envelope.get("input_required")
        if input_requests is None or row["cancel_requested_at"] is not None:
            return envelope, {}
        async with self._runtime.store.write_transaction() as connection:
            ciphertext = await connection.fetchval(_SQL["load_input_responses"], caller.tenant, call_id)
        responses, questions = (
            _decrypt_responses(await self._load_keys(caller.tenant), call_id, ciphertext),
            input_requests["requests"],
        )
        open_questions = {name: each for name, each in questions.items() if name not in responses}
        # Every question has an answer but no call continues the run: the process that took the last answer died, or
        # the call was refused. The answers can be given again, since no call used them.
        return envelope, open_questions or questions

    async def answer_questions(self, caller: Caller, call_id: str, responses: dict[str, Any]) -> Outcome | None:
        """Store answers to open questions; once each has one, make the continuing call. None before that."""
        row = await self._load_latest_row(caller, call_id)
        envelope, open_questions = await self._load_open_questions(caller, row)
        valid_responses = validate_responses(open_questions, responses)
        if not valid_responses:
            return None
        source_id, input_requests = str(row["id"]), envelope["input_required"]
        keys = await self._load_keys(caller.tenant)
        stored_input = await self._load_stored_input(caller, source_id, keys)
        async with self._runtime.store.write_transaction() as connection:
            await connection.fetchval(_SQL["lock_input_requests"], caller.tenant, source_id)
            previous = await connection.fetchval(_SQL["load_input_responses"], caller.tenant, source_id)
            all_responses = {**_decrypt_responses(keys, source_id, previous), **valid_responses}
            ciphertext = keys.seal(source_id, _SEAL_KIND, orjson.dumps(all_responses))
            await connection.execute(_SQL["save_input_responses"], caller.tenant, source_id, ciphertext)
        if input_requests["requests"].keys() - all_responses.keys():
            return None
        answers = InputResponses(round_token=input_requests["round_token"], responses=all_responses)
        request = stored_input.build_request(
            row["tool"], row["version"], row["session"], mode="async", input_responses=answers
        )
        return await self._lifecycle.run(caller, request)

    async def _load_stored_input(self, caller: Caller, call_id: str, keys: KeySet) -> StoredInput:
        """Load the call's stored input. Only the caller who made it may continue it, not even an administrator."""
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            row = await connection.fetchrow(_CALLS["load_call_to_retry"], caller.tenant, call_id)
        if row is None or not caller.is_maker_of(row["caller_user"], row["caller_agent"]):
            raise CallNotFound("no run has this id, or it is not yours", details={"call_id": call_id[:64]})
        if row["input"] is None:
            raise NotRetryable("the call's arguments are no longer stored: make the call again and answer it there")
        return StoredInput(keys.unseal(call_id, "input", row["input"]))

    async def _load_keys(self, tenant: str) -> KeySet:
        return await self._runtime.keys.get(tenant)


def _decrypt_responses(keys: KeySet, call_id: str, ciphertext: bytes | None) -> dict[str, Any]:
    responses: dict[str, Any] = {} if ciphertext is None else orjson.loads(keys.unseal(call_id, _SEAL_KIND, ciphertext))
    return responses
