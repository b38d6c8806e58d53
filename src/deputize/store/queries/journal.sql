-- What writes did, and how they are taken back: lifecycle/recording/settlement.py, lifecycle/compensation/,
-- operations/undo/.

-- name: load_uncertain_effects
select number, flow_id, step, resource, op, scope, before_digest, after_digest, sealed, id
from deputize.journal
where tenant = $1 and call_id = $2 and certainty = 'uncertain'
order by ordinal, id, number;

-- name: insert_abandoned_effect
-- Of a call whose process died. What it changed is not known, so it counts as anything in the tool's namespace.
insert into deputize.journal (tenant, id, number, call_id, caller_user, caller_agent, session, tool, version, resource, op,
    scope, certainty, compensation_class, undoes, began_at)
select k.tenant, $3, 0, k.id, k.caller_user, k.caller_agent, k.session, k.tool, k.version, split_part(k.tool, '.', 1),
    'update', '*', 'uncertain', 'irreversible', k.undoes, coalesce(r.started_at, k.created_at)
from deputize.calls k
left join deputize.runs r on r.tenant = k.tenant and r.id = k.id
where k.tenant = $1 and k.id = $2 and k.mutation_class <> 'read'
on conflict do nothing;

-- name: delete_old_journal
select deputize.delete_old_journal(p_days => $1);

-- name: find_entries_of_call
-- The newest entries of one call, or of the steps of a flow; of everyone or of one user, ever or since a time.
select e.id from (
    select j.id, j.ordinal, j.ended_at, j.caller_user, j.certainty, j.call_id from deputize.journal j
    where j.tenant = $1 and j.call_id = $2 and j.number = 0 and j.id >= deputize.first_uuid_of_eve($2)
    union
    select j.id, j.ordinal, j.ended_at, j.caller_user, j.certainty, j.call_id from deputize.journal j
    where j.tenant = $1 and j.flow_id = $2::text and j.number = 0 and j.id >= deputize.first_uuid_of_eve($2)
) e
where ($3::text is null or e.caller_user = $3) and ($5::timestamptz is null or e.ended_at >= $5)
  and deputize.counts_as_effect($1, e.call_id, e.certainty)
order by e.ordinal desc
limit $4;

-- name: find_entries_of_session
select j.id from deputize.journal j
where j.tenant = $1 and j.session = $2 and j.number = 0 and ($3::text is null or j.caller_user = $3)
  and ($5::timestamptz is null or j.ended_at >= $5)
  and deputize.counts_as_effect(j.tenant, j.call_id, j.certainty)
order by j.ordinal desc
limit $4;

-- name: find_entries_of_agent
-- Since a time; $6 is an id from well before it, so that older days are not looked at.
select j.id from deputize.journal j
where j.tenant = $1 and split_part(split_part(j.caller_agent, chr(30), 1), chr(31), 1) = $2 and j.number = 0
  and j.ended_at >= $5 and j.id >= $6 and ($3::text is null or j.caller_user = $3)
  and deputize.counts_as_effect(j.tenant, j.call_id, j.certainty)
order by j.ordinal desc
limit $4;

-- name: load_entries
-- Each effect of these entries, newest entry first, with the call that took the entry back last.
select j.id, j.number, j.ended_at, j.call_id, j.caller_user, j.caller_agent, j.session, j.tool, j.version, j.resource, j.op,
       j.scope, j.certainty, j.compensation_class, j.undo_until, j.undo_until < now() as is_over, j.sealed, j.undoes,
       j.is_undone, u.id as undo_id, u.call_id as undo_call_id,
       u.certainty as undo_certainty
from deputize.journal j
left join lateral (
    select o.id, o.call_id, o.certainty from deputize.journal o
    where o.tenant = j.tenant and o.undoes = j.id and o.id >= deputize.first_uuid_of_eve(j.id)
      and deputize.counts_as_effect(o.tenant, o.call_id, o.certainty)
    order by o.ordinal desc limit 1
) u on true
where j.tenant = $1 and j.id = any($2::uuid[])
order by j.ordinal desc, j.id, j.number;

-- name: find_later_writers
-- For each entry the newest effect on the same thing that is later and neither among those to be taken back nor this
-- call's, or that overlapped in time: of those it is not known which came last. What two calls have created under names of
-- the tool's choice is not the same thing.
select distinct on (e.id) e.id, o.call_id, o.caller_user, o.caller_agent, o.session, o.tool,
       o.began_at < e.ended_at as is_concurrent
from deputize.journal e
cross join lateral (
    select l.* from deputize.find_later_effects($1, e.resource, e.scope, e.id, e.ordinal, e.began_at) l
    where (l.id <> all($3::uuid[]) or l.began_at < e.ended_at) and l.call_id is distinct from $4::uuid
      and not (e.op = 'create' and l.op = 'create' and strpos(e.scope, '*') > 0 and strpos(l.scope, '*') > 0)
    order by l.ordinal desc limit 1
) o
where e.tenant = $1 and e.id = any($2::uuid[])
order by e.id, o.ordinal desc;

-- name: find_undo
-- The call that takes an entry back or did so, unless it is known to have done nothing.
select c.call_id from deputize.claims c join deputize.calls k on k.tenant = c.tenant and k.id = c.call_id
where c.tenant = $1 and c.scope = $2 and c.key = $3 and not k.nothing_happened;

-- name: load_undone_calls
-- The tool of each entry, and who acted in it, and in all that it took back itself.
with recursive undone as (
    select j.id, j.tool, j.caller_agent, j.undoes from deputize.journal j
    where j.tenant = $1 and j.id = any($2::uuid[]) and j.number = 0
    union all
    select u.id, u.tool, j.caller_agent, j.undoes from undone u
    join deputize.journal j on j.tenant = $1 and j.id = u.undoes and j.number = 0
)
select id, tool, array_agg(distinct caller_agent) as agent_keys from undone group by id, tool;
