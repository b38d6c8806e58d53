"""Render the page about the Cedar schema from the schema itself; an attribute without a description fails here."""

import re
from collections.abc import Iterator

from deputize.govern.policy.cedar_schema import SCHEMA
from deputize.govern.policy.policy_parser import ANNOTATIONS, RESERVED_IDS

INTRODUCTION = (
    "The entities, attributes and annotations that policies are written with. The principal is a `User`, the resource "
    'a `Tool`, and the action is always `Action::"call"`. Rules are type-checked against the schema at the end of this '
    "page, extended by the facts that the tenant's tools declare."
)
_ENTITY = re.compile(r"entity (\w+)(?: in \[([\w, ]+)\])?(?: \{([^}]*)\})?;", re.DOTALL)
_CONTEXT = re.compile(r"context: \{(.*)\n  \},", re.DOTALL)
_FIELD = re.compile(r"(\w+)(\??): (\{[^{}]*\}|[^,{}]+)")

_ENTITIES = {
    "Tenant": "Owns tools, policies and calls; derived from the token's issuer.",
    "Group": "A group of the user, as the identity provider names it.",
    "User": "The person or service whose authority the call uses: the token's subject.",
    "Agent": "An agent that acts for the user.",
    "Server": "The external service behind a tool; without one, the tool's provider.",
    "Namespace": "The first half of a tool's name.",
    "Resource": "Something a tool may change, as its contract declares.",
    "Tool": "The tool that is called, by its full name.",
}
_DESCRIPTIONS = {
    "User.issuer": "The identity provider that issued the token.",
    "User.trust": "`untrusted`, `standard` or `trusted`, as configured for the issuer.",
    "User.human": "True if a person signed in and acts without an agent.",
    "User.scopes": "The scopes of the token.",
    "Tool.name": "The second half of its name.",
    "Tool.namespace": "The first half of its name.",
    "Tool.version": "The version that would run.",
    "Tool.effects": "`read`, `write` (reversible) or `destructive`; undeclared effects count as destructive.",
    "Tool.mutation_class": "`read`, `write-reversible` or `write-irreversible`.",
    "Tool.kind": "`function`, `mcp_tool` and so on, as the contract says.",
    "Tool.provider": "Its provider, as the contract says.",
    "Tool.tags": "Its tags.",
    "Tool.permissions": "The permissions that its callers need, such as `filesystem:read:/data`.",
    "Tool.undoable": "True if another tool undoes its effect.",
    "Tool.previewable": "True if it can preview its effect.",
    "Tool.open_world": "False if its contract says that it deals only with what is known beforehand; else true.",
    "Tool.requires_user_interaction": "True if its contract requires a person for each call: what rules permit then "
    "waits for approval, unless a person calls without an agent.",
    "Tool.behaviours": "What its contract promises: `deterministic`, `idempotent`, `monotone`, `conserving`, "
    "`reversible`.",
    "Tool.authority_rank": "From 1 to 100, the higher the more it is believed; 0 if undeclared.",
    "context.agent": "The nearest agent whose identity is proven: by the user's issuer, by a token of its own, or by "
    "its DID. A name that a token exchange chose is not; absent if no agent is proven.",
    "context.agent_label": "The nearest agent's name as its delegation chose it, which proves nothing.",
    "context.agents": "Every name in the delegation chain between the user and the call, proven or chosen. An agent "
    "can add names and remove none, so a `forbid` that reads it holds; a `permit` that needs one of them is refused.",
    "context.delegated": "True if there is an agent.",
    "context.task": "The task that the delegation was made for.",
    "context.session": "The session of the call; it groups calls and grants nothing.",
    "context.trust": "The same as `principal.trust`.",
    "context.environment": "`development`, `staging` or `production`, as configured.",
    "context.time": "UTC: `epoch` in seconds, `hour` from 0 to 23, `weekday` from 0 for Monday.",
    "context.cost": "The session's cost so far, in millionths, as this gateway has counted it since it started. Of "
    "more than 10,000 sessions of a tenant, the oldest may count as more than they cost, and after a day as 0. A "
    "limit that must hold is a budget per session.",
    "context.labels": "Labels of the call: `suspected-sql-injection`, and likewise `command`, `script`, `prompt`, if "
    "an argument looks like it.",
    "context.changes": "The resources that the tool may change.",
    "context.operations": "`create`, `update`, `delete`: how it may change them.",
    "context.scopes": "Which of them, with the arguments filled in, as in `7` of `orders/{order}`.",
    "context.sweeping": "True if the call may change more than it names: a scope contains `*` (a missing or "
    "list-valued argument), or the tool changes things without declaring which. Created resources count as named.",
    "context.undoes": "There for a call that takes another one back: the `tool` of that call, such as "
    "`crm.rename_user`, and the `agents` that acted in it, or in a call that it took back itself; `delegated` is true "
    "if there are any. An undo sends what they wrote, or what their call returned, with the authority of the person "
    "who undoes: test with `has`.",
    "context.facts": "Arguments that the tool marks with `Fact` (`x-policy`); each may be absent: test with `has`.",
}
_ANNOTATIONS = {
    "id": "Required, unique within the policy set: the rule's name in answers, refusals and audit entries.",
    "reason": "The explanation that a refused caller gets.",
    "decision": '`"ask"`: a `permit` asks instead of allowing, a `forbid` asks instead of denying.',
    "drifted": 'On a `permit`: `"allow"` lets reads continue by a tool that its server changed, `"allow-writes"` all '
    "calls; else they are held. Their outcomes have a warning.",
    "idempotency_key": 'On a `permit`: `"optional"` allows irreversible calls without an idempotency key, else '
    "refused. Repeats of such a call are not recognized. For observing.",
    "backend": 'On a `forbid`: it lets calls be made in a sandbox that is at least so strong, `"namespaces"` or '
    '`"gvisor"`, and forbids all others. Commands are run on it; servers and programs are on what `[sandboxes]` says.',
    "approvers": 'With `@decision("ask")`: the groups that decide, as in `"oncall, leads"`. The first is notified '
    "at once, each further group if there is still no decision. Default: `[approvals] groups`.",
    "quorum": 'With `@decision("ask")`: how many different people must approve, from 1 to 20. Default: one.',
    "deadline": 'With `@decision("ask")`: when a request without a decision is denied, as in `"30m"` or `"7d"`; '
    "at most 30 days, and no later than the last of `[approvals] step_seconds`.",
    "step_up": 'With `@decision("ask")`: what an approver\'s token must contain in `amr` or `acr`, as in `"hwk"`.',
}


def render_lines() -> Iterator[str]:
    """Render the tables and the schema itself."""
    yield from ("", "## Entities", "", "| entity | in | description |", "|---|---|---|")
    entities = list(_ENTITY.findall(SCHEMA))
    for name, parents, _ in entities:
        yield f"| `{name}` | {', '.join(f'`{each}`' for each in parents.split(', ') if each)} | {_ENTITIES[name]} |"
    for name, _, fields in entities:
        if fields:
            variable = {"User": "principal", "Tool": "resource"}[name]
            yield from ("", f"## Attributes of `{variable}`, a {name}", "", *_render_table(name, fields))
    context = _CONTEXT.search(SCHEMA)
    assert context is not None
    yield from (
        "",
        "## Attributes of `context`",
        "",
        *_render_table("context", context[1].replace("{ FACTS }", "record")),
    )
    yield from ("", "## Annotations", "", "| annotation | description |", "|---|---|")
    yield from (f"| `@{name}` | {_ANNOTATIONS[name]} |" for name in ANNOTATIONS)
    reserved_ids = ", ".join(f"`{name}`" for name in sorted(RESERVED_IDS))
    yield from ("", f"Any other annotation is an error. Ids reserved for the gateway: {reserved_ids}.")
    yield from ("", "## Schema", "", "```cedarschema", SCHEMA.strip().replace("{ FACTS }", "{ … }"), "```")


def _render_table(owner: str, fields: str) -> Iterator[str]:
    yield from ("| attribute | type | description |", "|---|---|---|")
    for name, optional, kind in _FIELD.findall(fields):
        absence_note = ", may be absent" if optional else ""
        yield f"| `{name}` | `{kind.strip()}`{absence_note} | {_DESCRIPTIONS[f'{owner}.{name}']} |"
