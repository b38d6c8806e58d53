"""Describe every key of an audit entry, for its readers and for the reference."""

from collections.abc import Mapping
from typing import Final

from deputize.core.value_types import frozen


@frozen
class EntryField:
    """One key of an entry: what it means, and the version of entries that first had it."""

    meaning: str
    since: int = 1


ENTRY_FIELDS: Final[Mapping[str, EntryField]] = {
    "approval": EntryField(meaning="id of the approval request that the call waits for or was approved by", since=2),
    "arguments": EntryField(meaning="commitment to the arguments as they were sent, without sensitive values"),
    "attempts": EntryField(meaning="how often the tool was tried; absent if it was not started", since=2),
    "call": EntryField(meaning="id of the call; absent for administrative acts"),
    "caller": EntryField(meaning="pseudonyms of the user and of each agent that acts for them"),
    "command": EntryField(meaning="the administrative act, or how a person or a worker changed the call"),
    "confirmation": EntryField(meaning="rule by which an operator confirmed the act"),
    "continues": EntryField(meaning="id of the call whose input requests this one answers"),
    "cost_micros": EntryField(meaning="what the call was charged, in millionths; absent if nothing", since=2),
    "decision": EntryField(meaning="id of the decision record with the inputs of the decision"),
    "degradations": EntryField(meaning="marks of a call that was answered with less than was promised", since=2),
    "digest": EntryField(meaning="digest of the tool's contract"),
    "error": EntryField(meaning="number of the error the call ended with"),
    "flow": EntryField(meaning="id of the flow that the call is part of, as the caller states it", since=2),
    "hooks": EntryField(meaning="hooks that acted on the call, and what each did"),
    "id": EntryField(meaning="id of the entry, which orders the entries of a tenant by time"),
    "input_responses": EntryField(meaning="commitment to the caller's responses to a server's input requests"),
    "kind": EntryField(meaning="`read`, `refusal`, `intent`, `outcome`, `command`, `decision`, `yield` or `circuit`"),
    "latency_us": EntryField(meaning="how long the tool took, all attempts together, in microseconds", since=2),
    "mutation_class": EntryField(meaning="`read`, `write-reversible` or `write-irreversible`", since=2),
    "mutations": EntryField(meaning="where the arguments for the tool differ from those sent, by whom, and how"),
    "native_call": EntryField(meaning="id of the call in the caller's own protocol, as the caller states it", since=2),
    "operation": EntryField(meaning="the operation behind the tool, as its driver addresses it", since=2),
    "outcome": EntryField(meaning="state the call, or the circuit, is in after this entry"),
    "parent": EntryField(meaning="id of the call that this one is part of, as the caller states it", since=2),
    "policy": EntryField(meaning="digest of the policies that decided"),
    "redactions": EntryField(meaning="paths of arguments that were redacted"),
    "result": EntryField(meaning="commitment to the result without its sensitive values"),
    "rules": EntryField(meaning="rules that decided"),
    "scopes": EntryField(
        meaning="operation, resource and scope of each declared side effect; `{argument}` is filled from the call",
        since=2,
    ),
    "session": EntryField(meaning="session of the caller"),
    "signatures": EntryField(meaning="of an expiry: signatures of its range, days and time by the log's keys", since=2),
    "states": EntryField(meaning="states that the call passed since its last entry, in order", since=2),
    "subject": EntryField(meaning="what the command is about, or the external service of the circuit"),
    "summary": EntryField(
        meaning="of the result: `bytes`, `type`, `items`, `more` (pages follow), `redacted` (values); never a value",
        since=2,
    ),
    "suspicions": EntryField(
        meaning="what looks like an injection attempt (E3305): `sql`, `command`, `script` or `prompt`, and where",
        since=2,
    ),
    "tenant": EntryField(meaning="the tenant"),
    "time": EntryField(meaning="time of the entry, RFC 3339 in UTC"),
    "tool": EntryField(meaning="name of the tool"),
    "touched": EntryField(
        meaning="commitment to the scopes as the arguments filled them in, one per line, without sensitive values",
        since=2,
    ),
    "trace": EntryField(meaning="W3C trace id"),
    "v": EntryField(meaning="version of this format"),
    "version": EntryField(meaning="version of the tool"),
}
