"""Audit entries, version 1: the canonical bytes that become leaves of a tenant's log.

Values of arguments and results never enter: only salted commitments to their redacted form, the salt kept beside the
entry where it can be erased. An entry is written key by key in the order RFC 8785 asks for, which costs a fraction of
sorting it; a property test holds the bytes to the standard.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

import orjson

from deputize.core.call import Mutation
from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.contract import Contract
from deputize.core.decision import Decision
from deputize.core.frozen import frozen

Kind = Literal["read", "refusal", "intent", "outcome", "command", "decision"]
VERSION: Final = 1


@dataclass(slots=True)
class Stamps:
    """RFC 3339 times to the millisecond; the second's text is made once per second."""

    clock: Clock
    _second: int = -1
    _text: str = ""

    def now(self) -> str:
        second, millisecond = divmod(self.clock.epoch_ms(), 1000)
        if second != self._second:
            self._second = second
            self._text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        return f"{self._text}{millisecond:03d}Z"


@frozen
class About:
    """What every entry of one call says: who, by which trace, about which tool. The tool may be only a name."""

    caller: Caller
    trace: str
    call: str | None = None
    session: str | None = None
    contract: Contract | None = None
    tool: str | None = None
    # The call whose questions this one answers.
    continues: str | None = None


def entry(
    about: About,
    *,
    id: str,
    kind: Kind,
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
) -> bytes:
    """The bytes of one entry, keys in order. Absent facts are absent keys, so that old and new readers agree."""
    contract, caller = about.contract, about.caller
    chain = '","'.join(caller.pseudonyms)
    text = "{" if answers is None else f'{{"answers":"{answers}",'
    if arguments is not None:
        text += f'"arguments":"{arguments}",'
    if about.call is not None:
        text += f'"call":"{about.call}",'
    text += f'"caller":["{chain}"],' if chain else '"caller":[],'
    if command is not None:
        text += f'"command":{_quoted(command)},'
    if about.continues is not None:
        text += f'"continues":"{about.continues}",'
    if decision is not None and decision.record_id:
        text += f'"decision":"{decision.record_id}",'
    if contract is not None:
        text += f'"digest":"{contract.digest}",'
    if error is not None:
        text += f'"error":"{error}",'
    if hooks:
        text += f'"hooks":{_quoted(hooks)},'
    text += f'"id":"{id}","kind":"{kind}",'
    if mutations:
        text += f'"mutations":{_quoted([f"{m.path} {m.source} {m.change}" for m in mutations])},'
    if outcome is not None:
        text += f'"outcome":"{outcome}",'
    if decision is not None and decision.policy_digest:
        text += f'"policy":"{decision.policy_digest}",'
    if redactions:
        text += f'"redactions":{_quoted(redactions)},'
    if result is not None:
        text += f'"result":"{result}",'
    if decision is not None:
        text += f'"rules":{_rules(decision.rules)},'
    if about.session is not None:
        text += f'"session":{_quoted(about.session)},'
    if subject is not None:
        text += f'"subject":{_quoted(subject)},'
    text += f'"tenant":"{caller.tenant}","time":"{time}",'
    if contract is not None:
        text += f'"tool":"{contract.full_name}",'
        return f'{text}"trace":"{about.trace}","v":1,"version":"{contract.version}"}}'.encode()
    if about.tool is not None:
        text += f'"tool":{_quoted(about.tool)},'
    return f'{text}"trace":"{about.trace}","v":1}}'.encode()


def _quoted(value: str | Sequence[str]) -> str:
    return orjson.dumps(value).decode()


_known_rules: dict[tuple[str, ...], str] = {}


def _rules(rules: tuple[str, ...]) -> str:
    """Few sets of rules decide most calls; each is quoted once."""
    text = _known_rules.get(rules)
    if text is None:
        if len(_known_rules) > 10_000:
            _known_rules.clear()
        text = _known_rules[rules] = _quoted(rules)
    return text
