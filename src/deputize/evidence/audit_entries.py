"""Encode audit entries, version 1: the canonical bytes that become leaves of a tenant's log.

Entries never contain values of arguments and results, only salted commitments to their redacted form; the salt is
stored beside the entry, where it can be erased. An entry is written key by key in the order of RFC 8785, which costs a
fraction of sorting it; a property test compares the bytes with the standard.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

import orjson

from deputize.core.bounded_dict import BoundedDict
from deputize.core.call import Mutation
from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.contract.contract import Contract
from deputize.core.decision import Decision
from deputize.core.value_types import frozen

EntryKind = Literal["read", "refusal", "intent", "outcome", "command", "decision"]
VERSION: Final = 1


@dataclass(slots=True)
class TimestampFormatter:
    """Formats RFC 3339 times to the millisecond; the text of a second is made once."""

    clock: Clock
    _second: int = -1
    _text: str = ""

    def now(self) -> str:
        """Format the current time."""
        second, millisecond = divmod(self.clock.epoch_ms(), 1000)
        if second != self._second:
            self._second = second
            self._text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        return f"{self._text}{millisecond:03d}Z"


@frozen
class AuditContext:
    """What every entry of one call states: the caller, the trace and the tool, which may be only a name."""

    caller: Caller
    trace_id: str
    call_id: str | None = None
    session: str | None = None
    contract: Contract | None = None
    tool: str | None = None
    # The call whose input requests this one answers.
    continued_call_id: str | None = None


def encode_act(
    caller: Caller,
    *,
    id: str,
    time: str,
    command: str,
    subject: str,
    contract: Contract | None = None,
    confirmation: str | None = None,
) -> bytes:
    """Encode the entry of an administrative act; `confirmation` is the rule by which an operator confirmed it."""
    return encode_entry(
        AuditContext(caller=caller, trace_id=id.replace("-", ""), session=caller.session, contract=contract),
        id=id,
        kind="command",
        time=time,
        command=command,
        subject=subject,
        outcome="succeeded",
        confirmation=confirmation,
    )


def encode_entry(
    context: AuditContext,
    *,
    id: str,
    kind: EntryKind,
    time: str,
    arguments: str | None = None,
    answers: str | None = None,
    redactions: Sequence[str] = (),
    mutations: Sequence[Mutation] = (),
    hooks: Sequence[str] = (),
    decision: Decision | None = None,
    outcome: str | None = None,
    error: str | None = None,
    result: str | None = None,
    command: str | None = None,
    subject: str | None = None,
    confirmation: str | None = None,
) -> bytes:
    """Encode one entry, keys in order. Absent facts are absent keys, so that old and new readers agree."""
    contract, caller = context.contract, context.caller
    chain = '","'.join(caller.pseudonyms)
    text = "{" if answers is None else f'{{"answers":"{answers}",'
    if arguments is not None:
        text += f'"arguments":"{arguments}",'
    if context.call_id is not None:
        text += f'"call":"{context.call_id}",'
    text += f'"caller":["{chain}"],' if chain else '"caller":[],'
    if command is not None:
        text += f'"command":{_to_json(command)},'
    if confirmation is not None:
        text += f'"confirmation":{_to_json(confirmation)},'
    if context.continued_call_id is not None:
        text += f'"continues":"{context.continued_call_id}",'
    if decision is not None and decision.record_id:
        text += f'"decision":"{decision.record_id}",'
    if contract is not None:
        text += f'"digest":"{contract.digest}",'
    if error is not None:
        text += f'"error":"{error}",'
    if hooks:
        text += f'"hooks":{_to_json(hooks)},'
    text += f'"id":"{id}","kind":"{kind}",'
    if mutations:
        text += f'"mutations":{_to_json([f"{m.path} {m.source} {m.change}" for m in mutations])},'
    if outcome is not None:
        text += f'"outcome":"{outcome}",'
    if decision is not None and decision.policy_digest:
        text += f'"policy":"{decision.policy_digest}",'
    if redactions:
        text += f'"redactions":{_to_json(redactions)},'
    if result is not None:
        text += f'"result":"{result}",'
    if decision is not None:
        text += f'"rules":{_encode_rules(decision.rules)},'
    if context.session is not None:
        text += f'"session":{_to_json(context.session)},'
    if subject is not None:
        text += f'"subject":{_to_json(subject)},'
    text += f'"tenant":"{caller.tenant}","time":"{time}",'
    if contract is not None:
        text += f'"tool":"{contract.full_name}",'
        return f'{text}"trace":"{context.trace_id}","v":1,"version":"{contract.version}"}}'.encode()
    if context.tool is not None:
        text += f'"tool":{_to_json(context.tool)},'
    return f'{text}"trace":"{context.trace_id}","v":1}}'.encode()


def _to_json(value: str | Sequence[str]) -> str:
    return orjson.dumps(value).decode()


_rules_cache: BoundedDict[tuple[str, ...], str] = BoundedDict(10_000)


def _encode_rules(rules: tuple[str, ...]) -> str:
    """Encode the names of rules. Few sets of rules decide most calls, so each is encoded once."""
    text = _rules_cache.get(rules)
    return _rules_cache.put(rules, _to_json(rules)) if text is None else text
