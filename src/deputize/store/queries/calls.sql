-- Calls and their progress: lifecycle/claim.py, operations/calls/ and store/run_commits.py.

-- name: find_key_holder
-- Find the call that owns an idempotency key, unless the key's window is over. For a call that replaces another one:
-- unless that one owns it.
select c.call_id from deputize.claims c join deputize.calls k on k.tenant = c.tenant and k.id = c.call_id
where c.tenant = $1 and c.scope = $2 and c.key = $3
  and case when $4::uuid is null then k.window_ends is null or k.window_ends > now() else c.call_id <> $4 end;

-- name: load_key_holder
-- What is needed to replay the call that owns a key, to wait for it, or to take it over. Read from the primary.
select k.state, k.fingerprint, k.error, k.owner_epoch, k.trace, k.cancel_requested_at is not null as cancel_requested, s.ciphertext,
       exists (select from deputize.leases l
               where l.boot = k.owner and l.expires_at + make_interval(secs => $3) > now()) as owner_alive
from deputize.calls k
left join deputize.sealed_payloads s on s.tenant = k.tenant and s.id = k.id and s.kind = 'outcome'
where k.tenant = $1 and k.id = $2;

-- name: find_repeated_keys
-- Which of these new calls repeat a key. A claim whose window is over is free.
select o.id from unnest($2::uuid[], $3::bytea[], $4::bytea[]) as o(id, scope, key)
join deputize.claims c on c.tenant = $1 and c.scope = o.scope and c.key = o.key
join deputize.calls k on k.tenant = c.tenant and k.id = c.call_id
where k.window_ends is null or k.window_ends > now();

-- name: take_over_call
select * from deputize.take_over_call(
    p_tenant => $1, p_call_id => $2, p_epoch => $3, p_boot => $4, p_seconds => $5, p_margin_seconds => $6,
    p_entry_id => $7, p_entry => $8, p_salt => $9);

-- name: load_call
-- One call with its sealed outcome; with $3, also with its sealed input, which only runs have.
select k.tenant, k.id, k.state, k.tool, k.version, k.tool_digest, k.mutation_class, k.caller_user, k.caller_agent,
       k.session, k.created_at, k.ended_at, k.deadline_at, k.cancel_requested_at, k.error, k.trace, k.owner_epoch, k.nothing_happened,
       extract(epoch from now() - k.created_at)::float8 as age, k.needs_approval, k.flow_id, s.ciphertext,
       exists (select from deputize.runs r where r.tenant = k.tenant and r.id = k.id) as is_run,
       case when $3::boolean then (
           select i.ciphertext from deputize.sealed_payloads i
           where i.tenant = k.tenant and i.id = k.id and i.kind = 'input') end as input
from deputize.calls k
left join deputize.sealed_payloads s on s.tenant = k.tenant and s.id = k.id and s.kind = 'outcome'
where k.tenant = $1 and k.id = $2;

-- name: load_call_marks
-- What differs whenever there is news of one of these calls. A call without a row has only audit entries.
select c.id, k.state, k.owner_epoch,
       (select max(p.seq) from deputize.progress p where p.tenant = $1 and p.id = c.id) as seq,
       case when k.needs_approval then (
           select concat_ws(' ', a.id, a.state, a.level, a.expires_at, array(
               select g.grp from deputize.approval_groups g where g.tenant = a.tenant and g.id = a.id order by g.grp))
           from deputize.approvals a where a.tenant = $1 and a.call_id = c.id
           order by a.opened_at desc, a.id desc limit 1) end as approval,
       case when k.id is null then (
           select count(*) from deputize.audit_entries e where e.tenant = $1 and e.call_id = c.id) end as entries
from unnest($2::uuid[]) as c(id)
left join deputize.calls k on k.tenant = $1 and k.id = c.id;

-- name: list_calls
-- Newest first, below a cursor. Of all users or of one, of all agents or of one.
select k.id, k.state, k.tool, k.version, k.mutation_class, k.caller_user, k.caller_agent, k.session, k.created_at,
       k.ended_at, k.error, k.trace
from deputize.calls k
where k.tenant = $1 and ($2::text is null or k.caller_user = $2) and ($3::uuid is null or k.id < $3)
  and ($5::text is null or k.caller_agent = $5)
  -- What a token limits: the tools that it names, the effects that it allows, and what else it does not cover.
  and ($6::text[] is null or k.tool = any($6)) and ($7::text[] is null or k.mutation_class = any($7))
  and k.tool <> all($8::text[])
order by k.id desc
limit $4;

-- name: list_entries_of_call
-- A read that succeeded has no call row, so its audit entry is all that tells how it ended.
select a.id, a.entry from deputize.audit_entries a where a.tenant = $1 and a.call_id = $2 order by a.id;

-- name: cancel_input_requests
-- A call that asked for input has ended already; this records that no one will answer.
update deputize.calls set cancel_requested_at = coalesce(cancel_requested_at, now())
where tenant = $1 and id = $2 and state = 'needs_input';

-- name: request_cancel
update deputize.calls set cancel_requested_at = coalesce(cancel_requested_at, now())
where tenant = $1 and id = $2 and state in ('queued', 'running')
returning id;

-- name: cancel_queued_call
-- Cancel a call that no worker has begun, and return the state it waited in. It keeps its idempotency key, so that a
-- repeat is told of the cancellation; but what it was to take back can be taken back by another call.
with waits as (
    select k.tenant, k.id, k.state from deputize.calls k
    where k.tenant = $1 and k.id = $2 and k.owner_epoch = 0 and k.state in ('queued', 'awaiting_approval')
    for update
)
update deputize.calls k
set state = 'canceled', cancel_requested_at = now(), ended_at = now(), error = 'canceled', nothing_happened = true,
    window_ends = now() + make_interval(secs => case when k.undoes is null then k.window_seconds else 0 end)
from waits where k.tenant = waits.tenant and k.id = waits.id
returning waits.state;

-- name: save_outcome
insert into deputize.sealed_payloads (tenant, id, kind, ciphertext) values ($1, $2, 'outcome', $3)
on conflict (tenant, id, kind) do update set ciphertext = excluded.ciphertext;

-- name: load_newest_progress
-- The newest progress report and the newest partial result.
(select seq, report, partial from deputize.progress where tenant = $1 and id = $2 and not partial order by seq desc limit 1)
union all
(select seq, report, partial from deputize.progress where tenant = $1 and id = $2 and partial order by seq desc limit 1);

-- name: list_progress_since
select seq, report, partial from deputize.progress where tenant = $1 and id = $2 and seq > $3 order by seq limit 200;

-- name: count_runs_ahead
-- How many queued runs of the same user come first, among the first thousand of the tenant. Other users take turns.
select count(*) from (
    select k.id, k.caller_user from deputize.calls k where k.tenant = $1 and k.state = 'queued' order by k.id limit 1000
) as waiting
join deputize.calls mine on mine.tenant = $1 and mine.id = $2 and mine.caller_user = waiting.caller_user
join deputize.runs r on r.tenant = $1 and r.id = waiting.id
join deputize.runs own on own.tenant = $1 and own.id = $2
where (r.priority, r.queued_at) < (own.priority, own.queued_at);

-- name: load_call_to_retry
-- Only a run has an input to retry with.
select k.id, k.state, k.tool, k.version, k.caller_user, k.caller_agent, k.session, k.mutation_class, k.nothing_happened,
       k.claim_scope, k.claim_key, k.window_seconds, s.ciphertext as input
from deputize.calls k
left join deputize.sealed_payloads s on s.tenant = k.tenant and s.id = k.id and s.kind = 'input'
where k.tenant = $1 and k.id = $2;

-- name: load_approval_of_call
-- The newest approval request of a call, the groups that may decide it now, and the reason of a denial.
select a.id, a.state, a.demands, a.level, a.levels, a.opened_at, a.expires_at,
       array(select g.grp from deputize.approval_groups g where g.tenant = a.tenant and g.id = a.id order by g.grp) as groups,
       case when a.state = 'denied' then t.reason end as reason
from deputize.approvals a
join deputize.human_tasks t on t.tenant = a.tenant and t.id = a.id
where a.tenant = $1 and a.call_id = $2
order by a.opened_at desc, a.id desc
limit 1;

-- name: has_other_mutation
-- Whether another call of any tenant runs, or ended within the last seconds, and may have changed something: a function
-- may keep one state for all of them. The recent ones are looked up tenant by tenant, as the key is ordered.
select exists (
    select from deputize.calls where id <> $1::uuid and mutation_class <> 'read' and state = 'running'
) or exists (
    select from deputize.tenants t
    where exists (
        select from deputize.calls c
        where c.tenant = t.tenant and c.id >= $2::uuid and c.id <> $1::uuid and c.mutation_class <> 'read'
            and c.ended_at >= clock_timestamp() - make_interval(secs => $3)
    )
);

-- name: is_running_under
-- Whether a call still runs under this owner: it was not taken over, and no outcome of it is recorded.
select exists (select from deputize.calls where tenant = $1 and id = $2 and owner_epoch = $3 and state = 'running');
