-- Flows and their steps: lifecycle/durable/flow_run.py.

-- name: load_flow
-- What is recorded of a flow, and whose it is.
select s.ciphertext, k.caller_user, k.caller_agent, k.state not in ('queued', 'running', 'unknown') as has_ended
from deputize.calls k
left join deputize.sealed_payloads s on s.tenant = k.tenant and s.id = k.id and s.kind = 'flow'
where k.tenant = $1 and k.id = $2;

-- name: lock_waiting_flow
-- Nobody begins it, and so concludes it, before this transaction has recorded what it is about to do.
select true from deputize.calls where tenant = $1 and id = $2 and state = 'queued' and owner_epoch = $3 for share;

-- name: find_step_calls
-- The calls that have these keys. A call that proved that it had no effect has given its key back.
select c.scope, c.key, c.call_id
from deputize.claims c
join unnest($2::bytea[], $3::bytea[]) as e(scope, key) on c.scope = e.scope and c.key = e.key
where c.tenant = $1;

-- name: name_flow_of_calls
update deputize.calls set flow_id = $2 where tenant = $1 and id = any($3::uuid[]) and flow_id is distinct from $2;

-- name: lock_flow
select id from deputize.runs where tenant = $1 and id = $2 for update;

-- name: save_flow
insert into deputize.sealed_payloads (tenant, id, kind, ciphertext) values ($1, $2, 'flow', $3)
on conflict (tenant, id, kind) do update set ciphertext = excluded.ciphertext;

-- name: load_flow_calls
-- The steps of a flow, from the primary, with what they returned, but for those whose outcome is known here.
select k.id, k.state, k.tool, k.version, k.error, k.trace, k.mutation_class, k.nothing_happened, k.caller_user,
       k.caller_agent, k.cancel_requested_at is not null as cancel_requested, k.created_at, k.ended_at, s.id is not null as has_outcome,
       case when k.id <> all($3::uuid[]) then s.ciphertext end as ciphertext
from deputize.calls k
left join deputize.sealed_payloads s on s.tenant = k.tenant and s.id = k.id and s.kind = 'outcome'
where k.tenant = $1 and k.id = any($2::uuid[]);

-- name: list_calls_of_flow
-- The steps of a flow whose record cannot be read. Ids contain the time, and steps are made after their flow.
select k.id, k.state, k.tool, k.version, k.error, k.trace, k.mutation_class, k.nothing_happened, k.caller_user,
       k.caller_agent, k.cancel_requested_at is not null as cancel_requested, k.created_at, k.ended_at
from deputize.calls k where k.tenant = $1 and k.id > $2 and k.flow_id = $2;

-- name: clear_unable
-- A worker has just gone on with this flow.
update deputize.runs set unable_since = null where tenant = $1 and id = $2 and unable_since is not null;

-- name: load_calls_to_compensate
-- The calls of a failed flow; of those that are flows, what is recorded of them.
select k.id, k.tool, k.state, k.mutation_class, k.nothing_happened, s.ciphertext, s.ciphertext is not null as has_steps
from deputize.calls k
left join deputize.sealed_payloads s on s.tenant = k.tenant and s.id = k.id and s.kind = 'flow'
where k.tenant = $1 and k.id = any($2::uuid[]);

-- name: find_effects_of_calls
-- What these calls did, newest first. $3 is the oldest of them, so that older days are not looked at.
select j.id, j.call_id from deputize.journal j
where j.tenant = $1 and j.call_id = any($2::uuid[]) and j.number = 0 and j.undoes is null
  and j.id >= deputize.first_uuid_of_eve($3)
  and deputize.counts_as_effect(j.tenant, j.call_id, j.certainty)
order by j.ordinal desc;

-- name: load_compensation
select state, error from deputize.calls where tenant = $1 and id = $2;

-- name: must_flow_stop
-- From the primary. Null if the call is gone.
select cancel_requested_at is not null or ended_at is not null from deputize.calls where tenant = $1 and id = $2;
