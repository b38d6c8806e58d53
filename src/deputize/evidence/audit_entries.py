"""Encode audit entries, version 2: the canonical bytes that become leaves of a tenant's log.

Entries never contain values of arguments and results, only salted commitments to their redacted form; the salt is
stored beside the entry, where it can be erased. What a caller chooses, such as a session, is stated without personal
data and without the caller's own name: bytes that were hashed can never change, so it could not be erased.

An entry is written key by key in the order of RFC 8785, which costs a fraction of sorting it; a property test compares
the bytes with the standard.

Version 2 has every key of version 1 with the same meaning, and more of them: a reader of version 1 finds what it
knows. `entry_fields.py` says what each key means.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from deputize.core.bounded_dict import BoundedDict
from deputize.core.call import CallOrigin, Mutation
from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.contract.contract import Contract
from deputize.core.decision import Decision
from deputize.core.degradation import Degradation
from deputize.core.entry_kinds import EntryKind
from deputize.core.sensitive.marks import REDACTION_MARK
from deputize.core.sensitive.text import redact_personal_data
from deputize.core.states import State, require_path
from deputize.core.subject import ISSUER_PREFIX, parse_subject
from deputize.core.value_types import frozen

VERSION: Final = 2
# The command of an approval request that further groups are asked about, and the rule that denies one in time.
ESCALATE_APPROVAL: Final = "escalate_approval"
NOBODY_DECIDED: Final = "nobody-decided"
_MAX_RESOURCES: Final = 20


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
    approval_id: str | None = None
    origin: CallOrigin | None = None


class Passage:
    """The states that an entry adds to its call, in order, encoded once.

    `before` is the state that the call was in, if that is known. States that the transitions do not allow are a fault
    of the gateway: `IllegalTransition` is raised, and no entry can name them.
    """

    __slots__ = ("states", "text")

    def __init__(self, *states: State, before: State | None = None) -> None:
        require_path(before, states)
        self.states = states
        self.text = f'"states":{_to_json(states)},'


def encode_act(
    caller: Caller,
    *,
    id: str,
    time: str,
    command: str,
    subject: str,
    contract: Contract | None = None,
    confirmation: str | None = None,
    signatures: Sequence[str] = (),
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
        signatures=signatures,
    )


def encode_entry(
    context: AuditContext,
    *,
    id: str,
    kind: EntryKind,
    time: str,
    arguments: str | None = None,
    input_responses: str | None = None,
    redactions: Sequence[str] = (),
    mutations: Sequence[Mutation] = (),
    hooks: Sequence[str] = (),
    decision: Decision | None = None,
    outcome: str | None = None,
    error: str | None = None,
    result: str | None = None,
    summary: str | None = None,
    scopes_commitment: str | None = None,
    attempts: int = 0,
    latency_us: int = 0,
    cost_micros: int = 0,
    degradations: Sequence[Degradation] = (),
    suspicions: Sequence[str] = (),
    passage: Passage | None = None,
    command: str | None = None,
    subject: str | None = None,
    confirmation: str | None = None,
    signatures: Sequence[str] = (),
) -> bytes:
    """Encode one entry, keys in order. Absent facts are absent keys, so that old and new readers agree.

    `summary` is JSON already. Without attempts there is no latency.
    """
    contract, caller, origin = context.contract, context.caller, context.origin
    declared_text = _NOT_DECLARED if contract is None else _get_declared_text(contract)
    text = "{"
    if context.approval_id is not None:
        text += f'"approval":"{context.approval_id}",'
    if arguments is not None:
        text += f'"arguments":"{arguments}",'
    if attempts:
        text += f'"attempts":{attempts},'
    if context.call_id is not None:
        text += f'"call":"{context.call_id}",'
    chain = '","'.join(caller.pseudonyms)
    text += f'"caller":["{chain}"],' if chain else '"caller":[],'
    if command is not None:
        text += f'"command":{_to_json(command)},'
    if confirmation is not None:
        text += f'"confirmation":{_to_json(confirmation)},'
    if context.continued_call_id is not None:
        text += f'"continues":"{context.continued_call_id}",'
    if cost_micros:
        text += f'"cost_micros":{cost_micros},'
    if decision is not None and decision.record_id:
        text += f'"decision":"{decision.record_id}",'
    if degradations:
        text += f'"degradations":{_to_json(degradations)},'
    text += declared_text.digest
    if error is not None:
        text += f'"error":"{error}",'
    if origin is not None and origin.flow_id is not None:
        text += f'"flow":{_encode_stated(origin.flow_id, caller.user)},'
    if hooks:
        text += f'"hooks":{_to_json(hooks)},'
    text += f'"id":"{id}",'
    if input_responses is not None:
        text += f'"input_responses":"{input_responses}",'
    text += f'"kind":"{kind}",'
    if attempts:
        text += f'"latency_us":{latency_us},'
    text += declared_text.mutation_class
    if mutations:
        text += (
            f'"mutations":{_encode_stated_list([f"{m.path} {m.source} {m.change}" for m in mutations], caller.user)},'
        )
    if origin is not None and origin.native_call_id is not None:
        text += f'"native_call":{_encode_stated(origin.native_call_id, caller.user)},'
    text += declared_text.operation
    if outcome is not None:
        # Not formatted: that is slow for the members of an enumeration.
        text += '"outcome":"' + outcome + '",'
    if origin is not None and origin.parent_call_id is not None:
        text += f'"parent":"{origin.parent_call_id}",'
    if decision is not None and decision.policy_digest:
        text += f'"policy":"{decision.policy_digest}",'
    if redactions:
        text += f'"redactions":{_encode_stated_list(redactions, caller.user)},'
    if result is not None:
        text += f'"result":"{result}",'
    if decision is not None:
        text += f'"rules":{_encode_repeated(decision.rules)},'
    text += declared_text.scopes
    if context.session is not None:
        text += f'"session":{_encode_session(context.session, caller.user)},'
    if signatures:
        text += f'"signatures":{_to_json(signatures)},'
    if passage is not None:
        text += passage.text
    if subject is not None:
        text += f'"subject":{_to_json(subject)},'
    if summary is not None:
        text += f'"summary":{summary},'
    if suspicions:
        text += f'"suspicions":{_encode_stated_list(suspicions, caller.user)},'
    text += f'"tenant":"{caller.tenant}","time":"{time}",'
    if contract is None and context.tool is not None:
        text += f'"tool":{_encode_stated(context.tool, caller.user)},'
    text += declared_text.tool
    if scopes_commitment is not None:
        text += f'"touched":"{scopes_commitment}",'
    return f'{text}"trace":"{context.trace_id}",{declared_text.versions}}}'.encode()


def encode_summary(payload: Any, *, size: int, redacted_count: int, has_more: bool | None) -> str:
    """Encode what is recorded of a result: its type and size, how many values were redacted, and never a value."""
    if type(payload) is dict and not redacted_count and has_more is None:
        return f'{{"bytes":{size},"items":{len(payload)},"type":"object"}}'
    kind = _JSON_TYPES.get(type(payload), "array")
    items = f'"items":{len(payload)},' if kind in ("array", "object") else ""
    more = "" if has_more is None else f'"more":{"true" if has_more else "false"},'
    redactions = f'"redacted":{redacted_count},' if redacted_count else ""
    return f'{{"bytes":{size},{items}{more}{redactions}"type":"{kind}"}}'


_JSON_TYPES: Final = {
    dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number", type(None): "null",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _DeclaredText:
    """The keys of an entry that a contract alone decides, encoded once."""

    digest: str = ""
    mutation_class: str = ""
    operation: str = ""
    scopes: str = ""
    tool: str = ""
    versions: str = f'"v":{VERSION}'


_NOT_DECLARED: Final = _DeclaredText()
_declared_texts: BoundedDict[str, _DeclaredText] = BoundedDict(10_000)


def _get_declared_text(contract: Contract) -> _DeclaredText:
    text = _declared_texts.get(contract.digest)
    return _declared_texts.put(contract.digest, _encode_declared(contract)) if text is None else text


def _encode_declared(contract: Contract) -> _DeclaredText:
    scopes = [f"{each.op} {each.resource} {each.scope}" for each in contract.resources[:_MAX_RESOURCES]]
    if len(contract.resources) > _MAX_RESOURCES:
        scopes.append("\u2026")
    return _DeclaredText(
        digest=f'"digest":"{contract.digest}",',
        mutation_class=f'"mutation_class":"{contract.mutation_class}",',
        operation=f'"operation":{_to_json(contract.handler.target)},',
        scopes=f'"scopes":{_to_json(scopes)},' if scopes else "",
        tool=f'"tool":"{contract.full_name}",',
        versions=f'"v":{VERSION},"version":"{contract.version}"',
    )


def _to_json(value: str | Sequence[str]) -> str:
    return orjson.dumps(value).decode()


_repeated_texts: BoundedDict[tuple[str, ...], str] = BoundedDict(10_000)
_session_texts: BoundedDict[tuple[str, str], str] = BoundedDict(10_000)


def _encode_repeated(value: tuple[str, ...]) -> str:
    """Encode the names of rules. Few of them are those of most calls, so each is encoded once."""
    text = _repeated_texts.get(value)
    return _repeated_texts.put(value, _to_json(value)) if text is None else text


def _encode_session(session: str, user: str) -> str:
    """Encode a session without personal data, once for many calls."""
    text = _session_texts.get((session, user))
    return _session_texts.put((session, user), _encode_stated(session, user)) if text is None else text


def _encode_stated(text: str, user: str) -> str:
    """Encode a text that the caller chose, without personal data."""
    return _to_json(hide_person(text, user))


def _encode_stated_list(texts: Sequence[str], user: str) -> str:
    return _to_json([hide_person(text, user) for text in texts])


def hide_person(text: str, user: str) -> str:
    """Hide personal data in a text that a caller chose, and the caller's own name where it stands as a word."""
    name = parse_subject(user)[1] if user.startswith(ISSUER_PREFIX) else user
    if name and name in text:
        parts = text.split(name)
        text = parts[0]
        for part in parts[1:]:
            is_word = not text[-1:].isalnum() and not part[:1].isalnum()
            text += (REDACTION_MARK if is_word else name) + part
    return redact_personal_data(text)
