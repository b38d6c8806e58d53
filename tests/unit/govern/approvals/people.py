"""Callers who may decide, and tickets they decide about."""

from dataclasses import replace
from typing import Any

from deputize.core.caller import Caller
from deputize.core.decision import Demand
from deputize.core.settings import Approvals
from deputize.govern.approvals.deciders import Deciding
from deputize.govern.approvals.demands import asked_of

NOW = 1_800_000_000
SETTINGS = Approvals()
PERSON = Caller(
    tenant="acme", user="ben", groups=frozenset({"approvers"}), human=True, console=True, auth_time=NOW - 60
)


def somebody(**changes: Any) -> Caller:
    return replace(PERSON, **{name: _set(value) for name, value in changes.items()})


def _set(value: Any) -> Any:
    return frozenset(value) if isinstance(value, set) else value


def demand(rule: str = "ask-first", **wants: Any) -> Demand:
    return Demand(rule=rule, where="policies/default.cedar:8", reason="it deletes things", **wants)


def ticket(*demands: Demand, level: int = 0, settings: Approvals = SETTINGS, **more: Any) -> Deciding:
    asked = asked_of(demands or (demand(),), settings)
    return Deciding(**{"tenant": "acme", "chain": ("ana", "bot"), "asked": asked, "level": level, **more})
