-- Unknown outcomes: background/reconciler.py.

-- name: resolve_reconciliation_tasks
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
