-- Approval requests and decisions: lifecycle/approval/ and operations/approvals/.

-- name: compute_time_after
-- By the database's clock, which also decides when a request expires.
select date_trunc('milliseconds', now() + make_interval(secs => $1));

-- name: find_first_grant_end
-- When the first of a caller's delegations ends; null if one of them does not exist.
select case when count(*) = cardinality($2::uuid[]) then min(g.not_after) end
from deputize.grants g where g.tenant = $1 and g.id = any($2);

-- name: load_newest_approval_request
-- The newest request of a call is the one it may begin with, once it is approved.
select a.id, a.call_id, a.state, a.binding, a.presentation, a.preview_digest, a.expires_at, a.expires_at <= now() as expired,
       a.previewed_at + make_interval(secs => a.fresh_seconds) <= now() as stale
from deputize.approvals a
where a.tenant = $1 and a.call_id = $2
order by a.opened_at desc, a.id desc
limit 1;

-- name: find_plan_approvals
-- What a person may still begin of approved requests for several steps of an undo, newest first, and what was denied of
-- them; $2 is an id from before the oldest. None while a call that people decide about holds what is to be taken back.
select a.id, a.presentation, a.expires_at, a.state = 'denied' as is_denied, k.undoes from deputize.approvals a
join deputize.calls k on k.tenant = a.tenant and k.id = a.call_id
where a.tenant = $1 and a.id >= $2 and k.caller_user = $4 and k.caller_agent = ''
  and (a.state = 'denied' and k.undoes is not null
       or a.state in ('approved', 'used') and starts_with(a.group_key, $3) and a.expires_at > clock_timestamp())
  and not exists (
      select from deputize.claims c join deputize.calls h on h.tenant = c.tenant and h.id = c.call_id
      where c.tenant = $1 and c.scope = $5 and c.key = $6 and h.needs_approval and h.ended_at is null)
order by a.id desc limit 10;

-- name: list_waiting_callers
-- The callers of calls that wait for approval, below a cursor. Only open requests have groups.
with waiting as (
    select distinct g.id from deputize.approval_groups g
    where g.tenant = $1 and ($2::uuid is null or g.id < $2) order by g.id desc limit $3
)
select a.id, a.call_id, k.owner_epoch, k.trace, k.session, k.tool, r.caller
from waiting w
join deputize.approvals a on a.tenant = $1 and a.id = w.id
join deputize.calls k on k.tenant = a.tenant and k.id = a.call_id
join deputize.runs r on r.tenant = k.tenant and r.id = k.id
order by a.id desc;

-- name: approve_run
select deputize.approve_call(p_tenant => $1, p_approval_id => $2, p_resolved_by => $3, p_reason => $4);

-- name: end_approval_request
select deputize.end_unstarted_calls(
    tenants => $1, p_approval_state => $2, p_resolved_by => $3, p_reason => $4,
    ends_tenant => $5, ends_call_id => $6, ends_epoch => $7, ends_state => $8, ends_error => $9, ends_ciphertext => $10,
    ends_entry_id => $11, ends_entry => $12);

-- name: end_unstarted_run
select deputize.void_approved_call(
    p_tenant => $1, p_call_id => $2, p_queued_at => $3, p_reason => $4, p_state => $5, p_error => $6, p_ciphertext => $7,
    p_entry_id => $8, p_entry => $9);

-- name: lock_call_of_approval_request
-- By the id of the request or of its call. The call is locked before its request, in the order of everything that
-- begins or ends a call.
with named as (
    select a.tenant, a.id, a.call_id from deputize.approvals a where a.tenant = $1 and a.id = $2
    union all
    (select a.tenant, a.id, a.call_id from deputize.approvals a where a.tenant = $1 and a.call_id = $2
     order by a.opened_at desc, a.id desc limit 1)
    limit 1
)
select k.id from deputize.calls k join named on k.tenant = named.tenant and k.id = named.call_id
for update of k;

-- name: load_approval_request
-- By the clock of this moment: the transaction may have begun long ago and waited for the barrier since.
select a.tenant, a.id, a.call_id, a.state, a.binding, a.demands, a.presentation, a.chain, a.tool, a.group_key, a.level, a.levels,
       a.opened_at, a.expires_at, a.expires_at <= clock_timestamp() as expired, a.next_at, clock_timestamp() as now,
       k.state as call_state, k.error as call_error, k.version, k.tool_digest, k.mutation_class, k.caller_user, k.caller_agent, k.session,
       k.trace, k.owner_epoch,
       p.issuer as primary_issuer
from deputize.approvals a
join deputize.calls k on k.tenant = a.tenant and k.id = a.call_id
left join deputize.primary_issuers p on p.tenant = a.tenant
where a.tenant = $1 and (a.id = $2 or a.call_id = $2)
order by a.opened_at desc, a.id desc
limit 1;

-- name: list_votes
select v.voter, v.approve, v.counts, v.methods, v.reason, v.break_glass, v.at from deputize.votes v
where v.tenant = $1 and v.id = $2 order by v.at, v.voter;

-- name: insert_vote
-- A second vote of the same person is ignored, unless it breaks the glass.
insert into deputize.votes (tenant, id, voter, approve, counts, methods, reason, break_glass)
values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict (tenant, id, voter) do update set break_glass = true, reason = excluded.reason where excluded.break_glass
returning voter;

-- name: list_approval_requests_for_groups
-- Newest first, below a cursor. One walk along the index for each group. With $5, what approvers are shown, unless that is
-- large.
with found as (
    select distinct w.id from unnest($2::text[]) as g(grp)
    cross join lateral (
        select a.id from deputize.approval_groups a
        where a.tenant = $1 and a.grp = g.grp and ($3::uuid is null or a.id < $3)
        order by a.id desc limit $4) as w
    order by w.id desc limit $4
)
select a.id, a.call_id, a.state, a.tool, a.group_key, a.level, a.opened_at, a.expires_at, a.next_at, a.chain,
       k.state as call_state, k.version, k.caller_user, k.caller_agent,
       case when $5::boolean and octet_length(a.presentation) <= 65536 then a.presentation end as presentation
from found f
join deputize.approvals a on a.tenant = $1 and a.id = f.id
join deputize.calls k on k.tenant = a.tenant and k.id = a.call_id
order by a.id desc;

-- name: list_approval_requests
-- Of all callers or of one, in any state or in one. With $10, what approvers are shown, unless that is large.
select a.id, a.call_id, a.state, a.tool, a.group_key, a.level, a.opened_at, a.expires_at, a.next_at, a.chain,
       k.state as call_state, k.version, k.caller_user, k.caller_agent, k.mutation_class,
       case when $10::boolean and octet_length(a.presentation) <= 65536 then a.presentation end as presentation
from deputize.approvals a
join deputize.calls k on k.tenant = a.tenant and k.id = a.call_id
where a.tenant = $1 and ($2::text is null or k.caller_user = $2) and ($3::text is null or k.caller_agent = $3)
  and ($4::text is null or a.state = $4) and ($5::uuid is null or a.id < $5)
  and ($7::text[] is null or k.tool = any($7)) and ($8::text[] is null or k.mutation_class = any($8))
  and k.tool <> all($9::text[])
order by a.id desc
limit $6;

-- name: list_current_groups
select g.grp from deputize.approval_groups g where g.tenant = $1 and g.id = $2 order by g.grp;

-- name: notify_groups_of_break_glass
-- Write a notice for every group that may decide the request now.
insert into deputize.notices (tenant, approval_id, grp, kind)
select g.tenant, g.id, g.grp, 'broken-glass' from deputize.approval_groups g where g.tenant = $1 and g.id = $2;

-- name: insert_audit_entry
insert into deputize.audit_entries (tenant, id, call_id, entry) values ($1, $2, $3, $4) on conflict do nothing;
