-- Reconciliation tasks and unknown outcomes: operations/admin/reconciliation_tasks.py and background/reconciler.py.

-- name: open_reconciliation_task
insert into deputize.human_tasks (tenant, id, kind, call_id, question, due_at)
values ($1, $2, $3, $4, $5, now() + make_interval(secs => $6))
on conflict (tenant, call_id, kind) where state = 'open' do nothing
returning id;

-- name: list_reconciliation_tasks
-- Newest first, below a cursor, with the present state of their calls.
select t.id, t.kind, t.call_id, t.state, t.question, t.due_at, t.opened_at, t.resolved_at, t.resolved_by, t.resolution,
       t.reason, k.state as call_state, k.tool, k.version, k.caller_user, k.caller_agent
from deputize.human_tasks t
join deputize.calls k on k.tenant = t.tenant and k.id = t.call_id
where t.tenant = $1 and t.kind = 'reconcile' and ($2::text is null or t.state = $2) and ($3::uuid is null or t.id < $3)
order by t.id desc
limit $4;

-- name: load_reconciliation_task
select t.id, t.kind, t.call_id, t.state, t.question, t.due_at, t.opened_at, t.resolved_at, t.resolved_by, t.resolution,
       t.reason, k.state as call_state, k.tool, k.version, k.caller_user, k.caller_agent
from deputize.human_tasks t
join deputize.calls k on k.tenant = t.tenant and k.id = t.call_id
where t.tenant = $1 and t.id = $2 and t.kind = 'reconcile';

-- name: resolve_reconciliation_task
update deputize.human_tasks set state = 'resolved', resolved_at = now(), resolved_by = $3, resolution = $4, reason = $5
where tenant = $1 and id = $2 and state = 'open'
returning id;

-- name: resolve_reconciliation_tasks_of_call
-- The call was settled in another way, so no one has to decide.
update deputize.human_tasks set state = 'resolved', resolved_at = now(), resolved_by = '', resolution = $3, reason = ''
where tenant = $1 and call_id = $2 and kind = 'reconcile' and state = 'open';

-- name: take_due_reconciliations
-- Take what is due, count the try and postpone it before anything is checked, so that no other process checks it
-- too, and one that dies leaves it to the next round. The first check leaves the call's own process time for a late
-- outcome.
with due as (
    select c.tenant, c.id from deputize.reconciliations c
    where c.due_at <= now() - case when c.tries = 0 then make_interval(secs => $1) else interval '0' end
    order by c.due_at
    limit $2
    for update skip locked
)
update deputize.reconciliations c
set tries = c.tries + 1, due_at = now() + make_interval(secs => least($3 * power(2, least(c.tries, 30)), $4))
from due where c.tenant = due.tenant and c.id = due.id
returning c.tenant, c.id, c.tries, c.generation;

-- name: load_unknown_call
-- From the primary; for a run with its caller and its input.
select k.id, k.state, k.tool, k.version, k.tool_digest, k.mutation_class, k.session, k.trace, k.owner_epoch, k.error,
       k.cancel_requested_at is not null as cancel_requested, r.caller, s.ciphertext as input,
       exists (select from deputize.human_tasks t where t.tenant = k.tenant and t.call_id = k.id and t.kind = 'reconcile'
               and t.state = 'open') as has_task
from deputize.calls k
left join deputize.runs r on r.tenant = k.tenant and r.id = k.id
left join deputize.sealed_payloads s on s.tenant = k.tenant and s.id = k.id and s.kind = 'input'
where k.tenant = $1 and k.id = $2;

-- name: uncount_reconciliation_try
update deputize.reconciliations set tries = greatest(tries - 1, 0) where tenant = $1 and id = $2;

-- name: delete_reconciliation
delete from deputize.reconciliations where tenant = $1 and id = $2 and generation = $3;
