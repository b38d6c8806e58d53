-- Flows and their steps: lifecycle/durable/flow_run.py.

-- name: load_flow
select ciphertext from deputize.sealed_payloads where tenant = $1 and id = $2 and kind = 'flow';

-- name: name_flow_of_calls
-- Before the flow is locked: what ends a call locks the call, and then the run of its flow.
update deputize.calls set flow_id = $2 where tenant = $1 and id = any($3::uuid[]);

-- name: lock_flow
select id from deputize.runs where tenant = $1 and id = $2 for update;

-- name: save_flow
insert into deputize.sealed_payloads (tenant, id, kind, ciphertext) values ($1, $2, 'flow', $3)
on conflict (tenant, id, kind) do update set ciphertext = excluded.ciphertext;

-- name: load_flow_calls
-- The steps of a flow, from the primary, with what they returned.
select k.id, k.state, k.tool, k.version, k.error, k.trace, k.mutation_class, k.nothing_happened, k.caller_user,
       k.caller_agent, k.cancel_requested_at is not null as cancel_requested, k.created_at, k.ended_at, s.ciphertext
from deputize.calls k
left join deputize.sealed_payloads s on s.tenant = k.tenant and s.id = k.id and s.kind = 'outcome'
where k.tenant = $1 and k.id = any($2::uuid[]);
