"""Compare two versions of a contract, field by field.

A field that has no rule here counts as a break if it differs: what cannot be judged is not called compatible.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from deputize.catalog.compatibility.changes import ChangeLevel, ContractChange
from deputize.catalog.compatibility.promise_changes import PROMISE_RULES
from deputize.catalog.compatibility.schema_changes import Direction, compare_schemas
from deputize.catalog.policy_facts import list_facts
from deputize.catalog.schemas import strip_internal
from deputize.core.contract.contract import (
    Contract,
    Effects,
    Predicate,
    SideEffect,
    Timeout,
    TimeoutClass,
    UpstreamIdempotency,
)

FieldRule = Callable[[Contract, Contract], Iterator[ContractChange]]

_MAJOR, _MINOR, _PATCH = ChangeLevel.MAJOR, ChangeLevel.MINOR, ChangeLevel.PATCH
_EFFECTS: Final = (Effects.READ, Effects.WRITE, Effects.DESTRUCTIVE)
_TIMEOUTS: Final = (
    TimeoutClass.INTERACTIVE, TimeoutClass.STANDARD, TimeoutClass.LONG_RUNNING, TimeoutClass.ASYNC
)  # fmt: skip
# From the weakest to the strongest: what is idempotent may be repeated under any key.
_REPEATS: Final = (UpstreamIdempotency.CANNOT, UpstreamIdempotency.DEDUPLICATES, UpstreamIdempotency.IDEMPOTENT)
# Fields that identify the version, or that describe the change itself.
IDENTITY_FIELDS: Final = frozenset({"version", "changelog", "breaking_changes"})
# Fields that callers do not depend on: texts, and where the tool runs.
_PATCH_FIELDS: Final = frozenset(
    {"title", "description", "examples", "handler", "search_hint", "provider", "documentation_url", "source_code_url",
     "license", "author", "alerts"}
)  # fmt: skip
# Fields that callers notice, and that take nothing from them.
_MINOR_FIELDS: Final = frozenset(
    {"kind", "preview_rules", "validates", "verifies", "reads_state", "rolls_back", "observability", "retry", "breaker",
     "limits", "checkpoints", "external_service", "service_limits", "priority", "tags", "capability_refs", "native_ids",
     "external_mappings", "annotations", "authority_rank", "fallback", "fallback_task", "flow", "life"}
)  # fmt: skip


def compare_contracts(old: Contract, new: Contract) -> tuple[ContractChange, ...]:
    """List the changes from one version of a tool to another, the greatest first."""
    changes: list[ContractChange] = []
    for field in Contract.model_fields:
        if field in _RULES:
            changes += _RULES[field](old, new)
        elif field not in IDENTITY_FIELDS and getattr(old, field) != getattr(new, field):
            changes.append(_describe_field(field))
    return tuple(sorted(changes, key=lambda each: -each.level))


def _describe_field(field: str) -> ContractChange:
    if field in _PATCH_FIELDS:
        return _make_change(_PATCH, field, "is different, which callers do not depend on")
    if field in _MINOR_FIELDS:
        return _make_change(_MINOR, field, "is different")
    return _make_change(_MAJOR, field, "is different, and this release cannot tell what that means to callers")


def _compare_name(old: Contract, new: Contract) -> Iterator[ContractChange]:
    if old.full_name != new.full_name:
        yield _make_change(_MAJOR, "name", f"is {new.full_name} now, which is another tool than {old.full_name}")


def _compare_input(old: Contract, new: Contract) -> Iterator[ContractChange]:
    """Compare the arguments that callers can send, and those that policies can read."""
    schemas = strip_internal(old.input_schema), strip_internal(new.input_schema)
    yield from compare_schemas("/input_schema", *schemas, Direction.INPUT)
    if list_facts(old) != list_facts(new):
        yield _make_change(_MINOR, "input_schema", "lets policies read other arguments")


def _compare_output(old: Contract, new: Contract) -> Iterator[ContractChange]:
    yield from compare_schemas("/output_schema", old.output_schema, new.output_schema, Direction.RESULT)


def _compare_errors(old: Contract, new: Contract) -> Iterator[ContractChange]:
    yield from compare_schemas("/error_schema", old.error_schema, new.error_schema, Direction.RESULT)


def _compare_predicates(old: Contract, new: Contract) -> Iterator[ContractChange]:
    """Compare the checks of results: callers may rely on what each of them guarantees."""
    new_predicates = {each.name: each for each in new.predicates}
    for each in old.predicates:
        if each.name not in new_predicates:
            yield _make_change(_MAJOR, f"predicates/{each.name}", "is gone, so that results are not held to it")
        else:
            yield from _compare_predicate(each, new_predicates.pop(each.name))
    for name in new_predicates:
        yield _make_change(_MINOR, f"predicates/{name}", "is new, so that results are held to more")


def _compare_predicate(old: Predicate, new: Predicate) -> Iterator[ContractChange]:
    path = f"predicates/{old.name}"
    yield from compare_schemas(f"/{path}/holds", old.holds, new.holds, Direction.RESULT)
    if set(old.compare) - set(new.compare):
        yield _make_change(_MAJOR, f"{path}/compare", "lacks comparisons, so that results are not held to them")
    if set(new.compare) - set(old.compare):
        yield _make_change(_MINOR, f"{path}/compare", "has new comparisons, so that results are held to more")
    if old.severity != new.severity:
        level = _MAJOR if new.severity == "warning" else _MINOR
        yield _make_change(level, f"{path}/severity", f"is {new.severity} instead of {old.severity}")


def _compare_effects(old: Contract, new: Contract) -> Iterator[ContractChange]:
    if old.effects is not new.effects:
        is_stronger = _EFFECTS.index(new.effects) > _EFFECTS.index(old.effects)
        yield _make_change(_MAJOR if is_stronger else _MINOR, "effects", f"is {new.effects} now, and was {old.effects}")


def _compare_resources(old: Contract, new: Contract) -> Iterator[ContractChange]:
    for each in new.resources:
        if not any(_covers(old_effect, each) for old_effect in old.resources):
            yield _make_change(_MAJOR, "resources", f"can {_format_effect(each)} now, and could not")
    for each in old.resources:
        if not any(_covers(new_effect, each) for new_effect in new.resources):
            yield _make_change(_MINOR, "resources", f"cannot {_format_effect(each)} any more")


def _covers(declared_effect: SideEffect, effect: SideEffect) -> bool:
    """Tell whether a declared effect contains another: in the same scope, or in every one."""
    is_same = (declared_effect.resource, declared_effect.op) == (effect.resource, effect.op)
    return is_same and declared_effect.scope in ("*", effect.scope)


def _format_effect(effect: SideEffect) -> str:
    return f"{effect.op} {effect.resource}/{effect.scope}"


def _compare_undo(old: Contract, new: Contract) -> Iterator[ContractChange]:
    if old.undo != new.undo:
        level = _MINOR if old.undo is None else _MAJOR
        yield _make_change(level, "undo", f"is {new.undo or 'missing'} now, and was {old.undo or 'missing'}")


def _compare_status(old: Contract, new: Contract) -> Iterator[ContractChange]:
    if old.status != new.status:
        level = _MAJOR if new.status is None else _MINOR
        yield _make_change(level, "status", f"is {new.status or 'missing'} now, and was {old.status or 'missing'}")


def _compare_preview(old: Contract, new: Contract) -> Iterator[ContractChange]:
    if old.preview and not new.preview:
        yield _make_change(_MAJOR, "preview", "is gone")
    elif new.preview and not old.preview:
        yield _make_change(_MINOR, "preview", "is new")


def _compare_auth(old: Contract, new: Contract) -> Iterator[ContractChange]:
    new_scopes, old_scopes = set(new.auth.required_scopes), set(old.auth.required_scopes)
    for scope in sorted(new_scopes - old_scopes):
        yield _make_change(_MAJOR, "auth", f"requires {scope} now, which callers of before may not have")
    for scope in sorted(old_scopes - new_scopes):
        yield _make_change(_MINOR, "auth", f"does not require {scope} any more")
    for field, value in (
        ("credential", "acts with another kind of credential"),
        ("audience", "acts at another audience"),
    ):
        if getattr(old.auth, field) != getattr(new.auth, field):
            yield _make_change(_MAJOR, f"auth/{field}", value)
    for field in ("secret", "readonly_secret"):
        if getattr(old.auth, field) != getattr(new.auth, field):
            yield _make_change(_MINOR, f"auth/{field}", "names another secret")


def _compare_timeout(old: Contract, new: Contract) -> Iterator[ContractChange]:
    """Compare how long calls take: callers wait as long as the class says, and as an async contract says itself."""
    before, after = old.timeout, new.timeout
    if before.timeout_class is not after.timeout_class:
        is_longer = _TIMEOUTS.index(after.timeout_class) > _TIMEOUTS.index(before.timeout_class)
        reason = f"is {after.timeout_class} now, and was {before.timeout_class}"
        yield _make_change(_MAJOR if is_longer else _MINOR, "timeout/timeout_class", reason)
    elif before.effective_seconds != after.effective_seconds:
        is_longer = after.effective_seconds > before.effective_seconds
        level = _MAJOR if is_longer and after.timeout_class is TimeoutClass.ASYNC else _MINOR
        yield _make_change(
            level, "timeout/seconds", f"is {_format_seconds(after)} now, and was {_format_seconds(before)}"
        )


def _format_seconds(timeout: Timeout) -> str:
    return f"{timeout.effective_seconds:g} s"


def _compare_idempotency(old: Contract, new: Contract) -> Iterator[ContractChange]:
    before, after = old.idempotency, new.idempotency
    is_read = old.effects is new.effects is Effects.READ
    if before.upstream is not after.upstream:
        is_weaker = _REPEATS.index(after.upstream) < _REPEATS.index(before.upstream)
        # Reading twice does no harm, whatever the contract says about it.
        level = _MAJOR if is_weaker and not is_read else _MINOR
        yield _make_change(level, "idempotency/upstream", f"is {after.upstream} now, and was {before.upstream}")
    if before.key_argument != after.key_argument:
        yield _make_change(_MAJOR, "idempotency/key_argument", "takes the idempotency key from another argument")
    if old.window_seconds != new.window_seconds:
        level = _MAJOR if new.window_seconds < old.window_seconds and not is_read else _MINOR
        reason = f"is {new.window_seconds} s now, and was {old.window_seconds} s"
        yield _make_change(level, "idempotency/window_seconds", reason)


def _compare_network(old: Contract, new: Contract) -> Iterator[ContractChange]:
    if old.network != new.network:
        yield _make_change(_MAJOR, "network", "lets the tool reach other hosts or ports")


def _compare_aliases(old: Contract, new: Contract) -> Iterator[ContractChange]:
    for alias in sorted(set(old.aliases) - set(new.aliases)):
        yield _make_change(_MAJOR, "aliases", f"has no {alias} any more, by which callers may call it")
    for alias in sorted(set(new.aliases) - set(old.aliases)):
        yield _make_change(_MINOR, "aliases", f"has {alias} now")


def _make_change(level: ChangeLevel, path: str, reason: str) -> ContractChange:
    return ContractChange(level=level, path=f"/{path}", reason=reason)


def _skip(old: Contract, new: Contract) -> Iterator[ContractChange]:
    """Compare nothing: another field's rule does."""
    return iter(())


_RULES: Final[Mapping[str, FieldRule]] = {
    "namespace": _skip,
    "name": _compare_name,
    "input_schema": _compare_input,
    "output_schema": _compare_output,
    "error_schema": _compare_errors,
    "predicates": _compare_predicates,
    "effects": _compare_effects,
    "resources": _compare_resources,
    "undo": _compare_undo,
    "status": _compare_status,
    "preview": _compare_preview,
    "auth": _compare_auth,
    "timeout": _compare_timeout,
    "idempotency": _compare_idempotency,
    "network": _compare_network,
    "aliases": _compare_aliases,
    **PROMISE_RULES,
}
# The fields that are judged; a test holds the contract's fields to them.
JUDGED_FIELDS: Final[frozenset[str]] = IDENTITY_FIELDS | _PATCH_FIELDS | _MINOR_FIELDS | _RULES.keys()
