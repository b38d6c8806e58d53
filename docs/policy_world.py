"""The page about what policies see, made from the Cedar schema itself: an attribute without a meaning fails here."""

import re
from collections.abc import Iterator

from deputize.govern.policy.rules import ANNOTATIONS, RESERVED
from deputize.govern.policy.world import SCHEMA

ABOUT = (
    "Policies decide over this world. A caller is a `User`, what is called is a `Tool`, the action is always "
    '`Action::"call"`. Rules are type-checked against the schema at the end of this page, with the facts of the '
    "tenant's tools filled in."
)
_ENTITY = re.compile(r"entity (\w+)(?: in \[([\w, ]+)\])?(?: \{([^}]*)\})?;", re.DOTALL)
_CONTEXT = re.compile(r"context: \{(.*)\n  \},", re.DOTALL)
_FIELD = re.compile(r"(\w+)(\??): (\{[^{}]*\}|[^,{}]+)")

_ENTITIES = {
    "Tenant": "Whose tools, policies and calls these are; named by the issuer of the token.",
    "Group": "A group of the user, as the identity provider names it.",
    "User": "Who the authority comes from: the token's subject.",
    "Agent": "Who acts for the user.",
    "Server": "The external service behind a tool, or else its provider.",
    "Namespace": "The first half of a tool's name.",
    "Resource": "Something a tool may change, as its contract declares.",
    "Tool": "What is called, by its full name.",
}
_MEANINGS = {
    "User.issuer": "The identity provider whose token it is.",
    "User.trust": "`untrusted`, `standard` or `trusted`, as the settings say of the issuer.",
    "User.human": "Whether a person signed in and acts without an agent.",
    "User.scopes": "The scopes of the token.",
    "Tool.name": "The second half of its name.",
    "Tool.namespace": "The first half of its name.",
    "Tool.version": "The version that would run.",
    "Tool.effects": "`read`, `write` (it can be taken back) or `destructive`; undeclared counts as destructive.",
    "Tool.mutation_class": "`read`, `write-reversible` or `write-irreversible`.",
    "Tool.kind": "`function`, `mcp_tool` and so on, as the contract says.",
    "Tool.provider": "Who provides it, as the contract says.",
    "Tool.tags": "Its tags.",
    "Tool.undoable": "Whether another tool takes its effect back.",
    "Tool.previewable": "Whether it can show its effect without having it.",
    "context.agent": "The agent nearest to the call; absent where nobody acts for the user.",
    "context.agents": "Every agent between the call and the user.",
    "context.delegated": "Whether there is an agent.",
    "context.task": "What the delegation was made for.",
    "context.session": "The session the call belongs to; it groups, it allows nothing.",
    "context.trust": "The same as `principal.trust`.",
    "context.environment": "`development`, `staging` or `production`, as the settings say.",
    "context.time": "UTC: `epoch` in seconds, `hour` from 0 to 23, `weekday` from 0 for Monday.",
    "context.cost": "What the session has cost so far, in millionths.",
    "context.labels": "Labels of what the session has read.",
    "context.changes": "What the tool may change.",
    "context.operations": "`create`, `update`, `delete`: how it may change it.",
    "context.scopes": "Which of it, with the arguments filled in, as in `7` of `orders/{order}`.",
    "context.sweeping": "Whether the call may change more than it names: a scope with `*` in it, as of a missing or "
    "listed argument, or a tool that changes things and declares none. What it creates counts as named.",
    "context.facts": "The arguments the tool marks with `Fact` (`x-policy`); each may be absent, so ask with `has`.",
}
_ANNOTATIONS = {
    "id": "Needed, and once per set: what answers, refusals and audit entries call the rule.",
    "reason": "What a refused caller is told.",
    "decision": '`"ask"`: a `permit` asks instead of allowing, a `forbid` asks instead of denying.',
    "approvers": 'Beside `@decision("ask")`: the groups to ask, as in `"oncall, leads"`; the first is asked first, the '
    "next when nobody answered. Left out, those of `[approvals] groups`.",
    "quorum": 'Beside `@decision("ask")`: how many different people must agree, from 1 to 20. Left out, one.',
    "deadline": 'Beside `@decision("ask")`: when silence becomes a no, as in `"30m"`, `"24h"` or `"7d"`, at most 30 '
    "days, and never later than the last of `[approvals] step_seconds`.",
    "step_up": 'Beside `@decision("ask")`: what an approver\'s token must have in `amr` or `acr`, as in `"hwk"`.',
}


def lines() -> Iterator[str]:
    yield from ("", "## Entities", "", "| entity | in | what it is |", "|---|---|---|")
    entities = list(_ENTITY.findall(SCHEMA))
    for name, parents, _ in entities:
        yield f"| `{name}` | {', '.join(f'`{each}`' for each in parents.split(', ') if each)} | {_ENTITIES[name]} |"
    for name, _, fields in entities:
        if fields:
            variable = {"User": "principal", "Tool": "resource"}[name]
            yield from ("", f"## Attributes of `{variable}`, a {name}", "", *_table(name, fields))
    context = _CONTEXT.search(SCHEMA)
    assert context is not None
    yield from ("", "## Attributes of `context`", "", *_table("context", context[1].replace("{ FACTS }", "record")))
    yield from ("", "## Annotations", "", "| annotation | meaning |", "|---|---|")
    yield from (f"| `@{name}` | {_ANNOTATIONS[name]} |" for name in ANNOTATIONS)
    reserved = ", ".join(f"`{name}`" for name in sorted(RESERVED))
    yield from ("", f"Any other annotation is a mistake. Ids that the gateway uses itself: {reserved}.")
    yield from ("", "## Schema", "", "```cedarschema", SCHEMA.strip().replace("{ FACTS }", "{ … }"), "```")


def _table(owner: str, fields: str) -> Iterator[str]:
    yield from ("| attribute | type | meaning |", "|---|---|---|")
    for name, optional, kind in _FIELD.findall(fields):
        absent = ", may be absent" if optional else ""
        yield f"| `{name}` | `{kind.strip()}`{absent} | {_MEANINGS[f'{owner}.{name}']} |"
