-- name: key_holder
-- The call a key belongs to already, if there is one that still counts.
select c.call_id from deputize.claims c join deputize.calls k on k.tenant = c.tenant and k.id = c.call_id
where c.tenant = $1 and c.scope = $2 and c.key = $3 and (k.window_ends is null or k.window_ends > now());

-- name: in_seconds
-- By the clock that decides about tickets.
select date_trunc('milliseconds', now() + make_interval(secs => $1));

-- name: grants_end
-- When the delegations behind a caller end, the first of them; nothing where one is not there any more.
select case when count(*) = cardinality($2::uuid[]) then min(g.not_after) end
from deputize.grants g where g.tenant = $1 and g.id = any($2);

-- name: ask_run
select * from deputize.ask_run($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21,
    $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36);

-- name: ask_again
select deputize.ask_again($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17);

-- name: ticket_of_call
-- The newest ticket of a call: what it may be begun with, if it is approved.
select a.id, a.call_id, a.state, a.binding, a.shown, a.preview_digest, a.expires_at, a.expires_at <= now() as expired,
       a.previewed_at + make_interval(secs => a.fresh_seconds) <= now() as stale
from deputize.approvals a
where a.tenant = $1 and a.call_id = $2
order by a.opened_at desc, a.id desc
limit 1;

-- name: approve_asked
select deputize.approve_asked($1, $2, $3, $4);

-- name: end_asked
select deputize.end_asked($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- name: end_unbegun
select deputize.end_unbegun($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: lock_ticket
-- The call first, as everybody does who begins or ends one, then its ticket; by the id of either.
with named as (
    select a.tenant, a.id, a.call_id from deputize.approvals a where a.tenant = $1 and a.id = $2
    union all
    (select a.tenant, a.id, a.call_id from deputize.approvals a where a.tenant = $1 and a.call_id = $2
     order by a.opened_at desc, a.id desc limit 1)
    limit 1
)
select k.id from deputize.calls k join named on k.tenant = named.tenant and k.id = named.call_id
for update of k;

-- name: show_ticket
-- Time is that of this moment: whoever decides may have waited for the barrier since the transaction began.
select a.tenant, a.id, a.call_id, a.state, a.binding, a.demands, a.shown, a.chain, a.tool, a.group_key, a.level, a.levels,
       a.opened_at, a.expires_at, a.expires_at <= clock_timestamp() as expired, a.next_at, clock_timestamp() as now,
       k.state as call_state, k.version, k.tool_digest, k.caller_user, k.caller_agent, k.session, k.trace, k.owner_epoch
from deputize.approvals a
join deputize.calls k on k.tenant = a.tenant and k.id = a.call_id
where a.tenant = $1 and (a.id = $2 or a.call_id = $2)
order by a.opened_at desc, a.id desc
limit 1;

-- name: votes_on
select v.voter, v.approve, v.counts, v.methods, v.reason, v.glass, v.at from deputize.votes v
where v.tenant = $1 and v.id = $2 order by v.at, v.voter;

-- name: add_vote
insert into deputize.votes (tenant, id, voter, approve, counts, methods, reason, glass)
values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict (tenant, id, voter) do update set glass = true, reason = excluded.reason where excluded.glass
returning voter;

-- name: waiting_for_groups
-- What waits for somebody in these groups, newest first, below a cursor: one walk along the index for each group.
with found as (
    select distinct w.id from unnest($2::text[]) as g(grp)
    cross join lateral (
        select a.id from deputize.approval_groups a
        where a.tenant = $1 and a.grp = g.grp and ($3::uuid is null or a.id < $3)
        order by a.id desc limit $4) as w
    order by w.id desc limit $4
)
select a.id, a.call_id, a.state, a.tool, a.group_key, a.level, a.opened_at, a.expires_at, a.next_at, a.chain,
       k.state as call_state, k.version, k.caller_user, k.caller_agent
from found f
join deputize.approvals a on a.tenant = $1 and a.id = f.id
join deputize.calls k on k.tenant = a.tenant and k.id = a.call_id
order by a.id desc;

-- name: list_tickets
-- Of everybody, or of one user's own calls, in one state or in any.
select a.id, a.call_id, a.state, a.tool, a.group_key, a.level, a.opened_at, a.expires_at, a.next_at, a.chain,
       k.state as call_state, k.version, k.caller_user, k.caller_agent
from deputize.approvals a
join deputize.calls k on k.tenant = a.tenant and k.id = a.call_id
where a.tenant = $1 and ($2::text is null or k.caller_user = $2) and ($3::text is null or k.caller_agent = $3)
  and ($4::text is null or a.state = $4) and ($5::uuid is null or a.id < $5)
order by a.id desc
limit $6;

-- name: groups_now
select g.grp from deputize.approval_groups g where g.tenant = $1 and g.id = $2 order by g.grp;

-- name: tell_of_glass
-- Everybody who was asked, and everybody who would have been.
insert into deputize.notices (tenant, ticket, grp, kind)
select g.tenant, g.id, g.grp, 'broken-glass' from deputize.approval_groups g where g.tenant = $1 and g.id = $2;

-- name: add_entry
insert into deputize.audit_entries (tenant, id, call_id, entry) values ($1, $2, $3, $4) on conflict do nothing;
