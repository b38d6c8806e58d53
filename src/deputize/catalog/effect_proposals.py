"""Propose what a server's tool does, from its annotations and its name, for an operator to confirm.

A proposal decides nothing: servers are not trusted to describe themselves, so a tool stays destructive until someone
confirms it. Where name and annotations differ, the stricter reading is proposed.
"""

from itertools import pairwise
from typing import Any, Final

from deputize.catalog.importers.tool_names import normalize_name
from deputize.core.contract.contract import Effects
from deputize.core.value_types import frozen

_VERBS: Final = {
    Effects.READ: "get list search find show read describe view lookup count stat head browse inspect ls cat grep tree",
    Effects.WRITE: "create add append insert comment tag label star subscribe draft mkdir",
    Effects.DESTRUCTIVE: "delete remove drop purge clear wipe reset destroy kill terminate cancel overwrite replace "
    "revoke write edit update set put patch move rename merge push send post publish pay charge transfer refund run "
    "exec execute eval deploy invoke restart stop close approve upload import sync apply query",
}
_EFFECTS_BY_VERB: Final = {verb: effects for effects, verbs in _VERBS.items() for verb in verbs.split()}
_CONJUNCTIONS: Final = frozenset({"and", "or", "then"})
_STRICTNESS: Final = {Effects.READ: 0, Effects.WRITE: 1, Effects.DESTRUCTIVE: 2}
_MAX_NAME_LENGTH: Final = 256


@frozen
class EffectProposal:
    """The effects that are proposed for a tool, and why, as a clause."""

    effects: Effects
    reason: str


def is_stricter(effects: Effects, other: Effects) -> bool:
    """Tell whether the first effects are treated more strictly than the others."""
    return _STRICTNESS[effects] > _STRICTNESS[other]


def propose_effects(declaration: dict[str, Any]) -> EffectProposal:
    """Propose the effects of a tool as its server declares it."""
    by_hint, by_name = _read_hints(declaration.get("annotations")), _read_name(str(declaration.get("name", "")))
    if by_hint is None and by_name is None:
        return EffectProposal(effects=Effects.DESTRUCTIVE, reason="neither its name nor the server says what it does")
    if by_hint is None or by_name is None:
        proposal = by_hint or by_name
        assert proposal is not None
        return proposal
    if by_hint.effects is by_name.effects:
        return EffectProposal(effects=by_hint.effects, reason=f"{by_hint.reason}, and {by_name.reason}")
    strict, loose = (by_hint, by_name) if is_stricter(by_hint.effects, by_name.effects) else (by_name, by_hint)
    return EffectProposal(effects=strict.effects, reason=f"{strict.reason}, although {loose.reason}")


def _read_hints(annotations: Any) -> EffectProposal | None:
    if not isinstance(annotations, dict):
        return None
    if annotations.get("readOnlyHint") is True:
        return EffectProposal(effects=Effects.READ, reason="the server says it only reads")
    if annotations.get("destructiveHint") is False:
        return EffectProposal(effects=Effects.WRITE, reason="the server says it destroys nothing")
    if annotations.get("destructiveHint") is True:
        return EffectProposal(effects=Effects.DESTRUCTIVE, reason="the server says it destroys")
    if annotations.get("readOnlyHint") is False:
        return EffectProposal(effects=Effects.DESTRUCTIVE, reason="the server says it changes something")
    return None


def _read_name(name: str) -> EffectProposal | None:
    """Read the verbs of a name, and take the strictest: the first word and those after and, or and then count; in a
    name that begins otherwise, all do.
    """
    words = normalize_name(name[:_MAX_NAME_LENGTH], _MAX_NAME_LENGTH).split("_")
    if words[0] in _EFFECTS_BY_VERB:
        words = [words[0], *(word for before, word in pairwise(words) if before in _CONJUNCTIONS)]
    verbs = [each for each in words if each in _EFFECTS_BY_VERB]
    if not verbs:
        return None
    strictest = max(verbs, key=lambda verb: _STRICTNESS[_EFFECTS_BY_VERB[verb]])
    return EffectProposal(effects=_EFFECTS_BY_VERB[strictest], reason=f"its name says {strictest}")
