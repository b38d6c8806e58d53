"""Load an approval request for a person: decrypted, with its votes so far, if they may see it."""

from typing import Any
from uuid import UUID

import asyncpg
import orjson

from deputize.core.caller import BREAK_GLASS_SCOPE, Caller
from deputize.core.errors import HumanTaskNotFound
from deputize.core.value_types import frozen
from deputize.govern.approvals.approvers import OpenApproval, parse_participants
from deputize.govern.approvals.requirements import Vote, parse_plan
from deputize.lifecycle.approval.approval_request import ApprovalContents
from deputize.lifecycle.approval.presentation import describe_full_request
from deputize.lifecycle.call_access import may_reach
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("approvals")


@frozen
class ApprovalRequestView:
    row: asyncpg.Record
    contents: ApprovalContents
    groups: tuple[str, ...]
    votes: tuple[asyncpg.Record, ...]
    open_approval: OpenApproval

    @property
    def id(self) -> str:
        return str(self.row["id"])

    @property
    def call_id(self) -> str:
        return str(self.row["call_id"])

    @property
    def call_state(self) -> str:
        return str(self.row["call_state"])

    @property
    def binding(self) -> str:
        return bytes(self.row["binding"]).hex()

    def to_json(self, runtime: Runtime) -> dict[str, Any]:
        return describe_full_request(runtime, self.row, self.contents, self.groups, self.votes)

    def list_differences(self, other: "ApprovalRequestView") -> frozenset[str]:
        """List the arguments, input responses and callers that differ between the two requests.

        The arguments are compared as they are, not as they are shown. If an earlier release opened one of the requests,
        only their redacted forms are known, so that each counts as different.
        """
        mine, others = self.contents.presentation, other.contents.presentation
        names = {*mine["arguments"], *others["arguments"]}
        own_digests, other_digests = self.contents.argument_fingerprints, other.contents.argument_fingerprints
        if own_digests is None or other_digests is None:
            differ = names
        else:
            all_names = {*own_digests, *other_digests}
            differ = {name for name in all_names if own_digests.get(name) != other_digests.get(name)}
        behind = {
            name
            for name in ("for_user", "agents", "environment", "input_responses")
            if mine.get(name) != others.get(name)
        }
        return frozenset(differ | behind)


async def load_request_view(
    runtime: Runtime, connection: Connection, caller: Caller, approval_id: str, *, for_update: bool = False
) -> ApprovalRequestView:
    """Load a request by its id or its call's id; fail alike if it is absent or this caller may not see it."""
    try:
        canonical_id = str(UUID(approval_id))
    except ValueError:
        raise _not_found_error() from None
    tenant = caller.tenant
    if for_update:
        await connection.fetchval(_SQL["lock_call_of_approval_request"], tenant, canonical_id)
    row = await connection.fetchrow(_SQL["load_approval_request"], tenant, canonical_id)
    if row is None:
        raise _not_found_error()
    plan = parse_plan(orjson.loads(row["demands"]), levels=row["levels"])
    approver_groups = {group for demand in plan.requirements for group in demand.groups}
    is_reachable = await may_reach(runtime, caller, row)
    # People with the break-glass scope belong to no asked group, but must see what they override.
    is_approver = not caller.groups.isdisjoint(approver_groups) or BREAK_GLASS_SCOPE in caller.scopes
    if not (is_reachable or (caller.console and is_approver)):
        raise _not_found_error()
    keys = await runtime.keys.get(tenant)
    contents = ApprovalContents.decrypt(keys, str(row["id"]), row["presentation"])
    groups = await connection.fetch(_SQL["list_current_groups"], tenant, row["id"])
    votes = tuple(await connection.fetch(_SQL["list_votes"], tenant, row["id"]))
    open_approval = OpenApproval(
        tenant=tenant,
        participants=parse_participants(row["chain"], row["primary_issuer"]),
        plan=plan,
        level=row["level"],
        votes=tuple(
            Vote(
                voter=vote["voter"],
                approve=vote["approve"],
                requirement_indexes=frozenset(vote["counts"]),
                is_break_glass=vote["break_glass"],
            )
            for vote in votes
        ),
        source_agents=() if contents.undo is None else contents.undo.source_agents,
    )
    return ApprovalRequestView(
        row=row,
        contents=contents,
        groups=tuple(each["grp"] for each in groups),
        votes=votes,
        open_approval=open_approval,
    )


def _not_found_error() -> HumanTaskNotFound:
    return HumanTaskNotFound("no approval request has this id, or you may not see it")
