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
-- For each entry one of the newest effects on the same thing that is later and neither among those to be taken back nor
-- this call's, or that overlapped in time: of those it is not known which came last. What two calls have created under
-- names of the tool's choice is not the same thing. What had ended before an entry began came before it; all else may have
-- come after it. An effect that was taken back cancels out with the call that did so.
with given as materialized (
    -- Not as parameters: the planner would look at each id, for each partition and index.
    select $2::uuid[] as entries, $2::uuid[] || $3::uuid[] as ids
), effects as materialized (
    select e.id, e.resource, e.scope, e.op = 'create' and e.is_pattern as is_new, e.ordinal, e.began_at, e.ended_at
    from deputize.journal e
    where e.tenant = $1 and e.id = any((select g.entries from given g)::uuid[])
), places as materialized (
    -- Each thing is looked at once, however many entries changed it.
    select e.resource, e.scope, e.is_new, split_part(e.scope, '*', 1) collate "C" as prefix,
           strpos(e.scope, '*') > 0 as is_pattern, min(e.began_at) as began_at,
           deputize.first_uuid_of_eve(min(e.id::text)::uuid) as first_id
    from effects e group by e.resource, e.scope, e.is_new
), writers as materialized (
    -- Found through the indexed prefixes, newest first, judged by scopes_overlap.
    select p.resource as place, p.scope as place_scope, p.is_new, o.id, o.call_id, o.ordinal, o.began_at, o.ended_at
    from places p cross join lateral (
        (
            select l.* from generate_series(0, length(p.prefix)) as n cross join lateral (
                select j.id, j.call_id, j.ordinal, j.began_at, j.ended_at from deputize.journal j
                where j.tenant = $1 and j.resource = p.resource and j.scope_prefix = left(p.prefix, n) collate "C"
                  and j.ended_at > p.began_at and j.id >= p.first_id
                  and deputize.scopes_overlap(j.scope, p.scope)
                  and not j.is_undone and (j.undoes is null or j.certainty = 'uncertain')
                  and not (p.is_new and j.op = 'create' and j.is_pattern)
                  and j.id <> all((select g.ids from given g)::uuid[]) and j.call_id is distinct from $4::uuid
                  and (j.certainty = 'happened' or deputize.counts_as_effect(j.tenant, j.call_id, j.certainty))
                order by j.ended_at desc limit 1
            ) l
        ) union all (
            select j.id, j.call_id, j.ordinal, j.began_at, j.ended_at from deputize.journal j
            where j.tenant = $1 and j.resource = p.resource and not p.is_pattern
              and j.scope_prefix >= (p.prefix || '/') collate "C" and j.scope_prefix < (p.prefix || '0') collate "C"
              and j.ended_at > p.began_at and j.id >= p.first_id
              and not j.is_undone and (j.undoes is null or j.certainty = 'uncertain')
              and j.id <> all((select g.ids from given g)::uuid[]) and j.call_id is distinct from $4::uuid
              and (j.certainty = 'happened' or deputize.counts_as_effect(j.tenant, j.call_id, j.certainty))
            limit 1000
        ) union all (
            select j.id, j.call_id, j.ordinal, j.began_at, j.ended_at from deputize.journal j
            where j.tenant = $1 and j.resource = p.resource and (p.is_pattern or j.is_pattern)
              and j.scope_prefix > p.prefix and j.scope_prefix < (p.prefix || chr(1114111)) collate "C"
              and j.ended_at > p.began_at and j.id >= p.first_id
              and not j.is_undone and (j.undoes is null or j.certainty = 'uncertain')
              and not (p.is_new and j.op = 'create' and j.is_pattern)
              and j.id <> all((select g.ids from given g)::uuid[]) and j.call_id is distinct from $4::uuid
              and (j.certainty = 'happened' or deputize.counts_as_effect(j.tenant, j.call_id, j.certainty))
            limit 1000
        )
        order by ended_at desc limit 1
    ) o
), undos as materialized (
    -- An undo is later only than what is between it and what it took back: to all before, both are as if they had not been.
    select u.id, u.call_id, u.resource, u.scope, u.op = 'create' and u.is_pattern as is_new, u.ordinal, u.began_at,
           u.ended_at, (select t.ordinal from deputize.journal t
                        where t.tenant = $1 and t.id = u.undoes and t.number = 0) as undone_ordinal
    from deputize.journal u
    where u.tenant = $1 and u.undoes is not null and u.certainty = 'happened' and not u.is_undone
      and u.id <> all((select g.ids from given g)::uuid[]) and u.call_id is distinct from $4::uuid
      and u.id >= (select min(p.first_id::text)::uuid from places p) and u.resource in (select p.resource from places p)
), planned as materialized (
    select j.id, j.call_id, j.resource, j.scope, j.op = 'create' and j.is_pattern as is_new, j.ordinal, j.began_at,
           j.ended_at, case when j.certainty = 'happened' then (
               select t.ordinal from deputize.journal t where t.tenant = $1 and t.id = j.undoes and t.number = 0
           ) end as undone_ordinal
    from deputize.journal j
    where j.tenant = $1 and j.id = any((select g.ids from given g)::uuid[]) and not j.is_undone
      and j.call_id is distinct from $4::uuid
      and (j.certainty = 'happened' or deputize.counts_as_effect(j.tenant, j.call_id, j.certainty))
), later as (
    select e.id as entry_id, e.ended_at as entry_ended_at, w.id, w.ordinal, w.began_at
    from effects e
    join writers w on w.place = e.resource and w.place_scope = e.scope and w.is_new = e.is_new and w.ended_at > e.began_at
    union all
    select e.id, e.ended_at, u.id, u.ordinal, u.began_at
    from effects e
    join undos u on u.resource = e.resource and u.ended_at > e.began_at and coalesce(u.undone_ordinal, 0) <= e.ordinal
        and not (e.is_new and u.is_new) and deputize.scopes_overlap(u.scope, e.scope)
    union all
    select e.id, e.ended_at, c.id, c.ordinal, c.began_at
    from effects e
    join planned c on c.resource = e.resource and c.id <> e.id and c.ended_at > e.began_at and c.began_at < e.ended_at
        and coalesce(c.undone_ordinal, 0) <= e.ordinal and not (e.is_new and c.is_new)
        and deputize.scopes_overlap(c.scope, e.scope)
), newest as (
    select distinct on (l.entry_id) l.entry_id, l.id, l.began_at < l.entry_ended_at as is_concurrent
    from later l order by l.entry_id, l.ordinal desc
)
select n.entry_id as id, j.call_id, j.caller_user, j.caller_agent, j.session, j.tool, n.is_concurrent
from newest n cross join lateral (
    select w.call_id, w.caller_user, w.caller_agent, w.session, w.tool from deputize.journal w
    where w.tenant = $1 and w.id = n.id and w.number = 0 limit 1
) j;

-- name: count_undos_below
-- How many undos of undos an entry is the last of, up to so many.
with recursive undos(undoes, place) as (
    select j.undoes, 1 from deputize.journal j
    where j.tenant = $1 and j.id = $2 and j.number = 0 and j.undoes is not null
    union all
    select j.undoes, u.place + 1 from undos u
    join deputize.journal j on j.tenant = $1 and j.id = u.undoes and j.number = 0 and j.undoes is not null
    where u.place < $3::integer
)
select count(*) from undos;

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
