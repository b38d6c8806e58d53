-- Leases, workers and runs: lifecycle/durable/ and operations/background/.

-- name: renew_lease
-- Create or extend the lease of this boot, and return PostgreSQL's time in milliseconds.
insert into deputize.leases (boot, expires_at, release)
values ($1, now() + make_interval(secs => $2), $3)
on conflict (boot) do update set expires_at = excluded.expires_at
returning (extract(epoch from clock_timestamp()) * 1000)::bigint;

-- name: end_lease
-- On a clean stop, so that no one has to wait for the lease to expire.
update deputize.leases set expires_at = now() where boot = $1;

-- name: lock_abandoned_calls
-- Running calls past their deadline whose owner's lease has expired, with a margin on both; and any running call
-- long past its deadline, because its owner cannot be executing it any more. Locked, skipping those another sweeper
-- has locked. The caller marks them unknown in the same transaction; a late outcome still settles them.
select k.tenant, k.id, k.tool, k.version, k.tool_digest, k.session, k.caller_user, k.caller_agent, k.trace, k.owner_epoch
from deputize.calls k
where k.state = 'running'
  and k.deadline_at + make_interval(secs => $1) < now()
  and (k.deadline_at + make_interval(secs => $1) + interval '5 minutes' < now()
       or not exists (select from deputize.leases l
                      where l.boot = k.owner and l.expires_at + make_interval(secs => $1) > now()))
order by k.deadline_at
limit 100
for update of k skip locked;

-- name: mark_call_unknown
update deputize.calls set state = 'unknown', ended_at = now(), error = 'outcome-unknown'
where tenant = $1 and id = $2 and owner_epoch = $3 and state = 'running';

-- name: insert_audit_entry
insert into deputize.audit_entries (tenant, id, call_id, entry, salt) values ($1, $2, $3, $4, $5)
on conflict do nothing;

-- name: create_partitions
call deputize.create_partitions(days_ahead => 7);

-- name: delete_dead_leases
-- Leases long expired that no running call refers to, and no worker whose runs are yet to be taken over.
delete from deputize.leases l
where l.expires_at < now() - interval '1 day'
  and not exists (select from deputize.calls k where k.owner = l.boot and k.state = 'running')
  and not exists (select from deputize.workers w where w.boot = l.boot);

-- name: load_pending_run
-- From the primary. Only in the states a run can be resumed from.
select k.tool, k.version, k.tool_digest, k.session, k.owner, k.owner_epoch, k.state, k.needs_approval, s.ciphertext as input, r.caller, r.queued_at,
       coalesce(r.not_after <= now(), false) as over, r.takeovers, r.untouched_epoch,
       extract(epoch from now() - r.started_at)::float8 as age_seconds,
       k.cancel_requested_at is not null as cancel_requested,
       k.state = 'running' and exists (select from deputize.leases l where l.boot = k.owner
           and l.expires_at + make_interval(secs => $3) > now()) as owner_alive,
       extract(epoch from now() - r.unable_since)::float8 as unable_seconds
from deputize.calls k
join deputize.runs r on r.tenant = k.tenant and r.id = k.id
left join deputize.sealed_payloads s on s.tenant = k.tenant and s.id = k.id and s.kind = 'input'
where k.tenant = $1 and k.id = $2 and k.state in ('queued', 'running', 'unknown');

-- name: return_run_to_queue
select deputize.reschedule_run(p_tenant => $1, p_call_id => $2, p_delay_seconds => $3, p_unable => $4);

-- name: undo_run_begin
select deputize.undo_run_begin(
    p_tenant => $1, p_call_id => $2, p_epoch => $3, p_untouched => $4, p_delay_seconds => $5);

-- name: clean_lock_queues
select deputize.clean_lock_queues();

-- name: count_tenants_with_queued_runs
-- Up to a limit. The recursion takes one index step per tenant.
with recursive waiting as (
    (select tenant from deputize.calls where state = 'queued' order by tenant limit 1)
    union all
    select (select k.tenant from deputize.calls k where k.state = 'queued' and k.tenant > w.tenant order by k.tenant limit 1)
    from waiting w where w.tenant is not null
)
select count(*) from (select from waiting where tenant is not null limit $1) as found;

-- name: insert_worker
insert into deputize.workers (boot, release) values ($1, $2) on conflict do nothing;

-- name: lock_dead_worker
select w.boot from deputize.workers w join deputize.leases l on l.boot = w.boot
where l.expires_at + make_interval(secs => $1) < now()
order by l.expires_at limit 1
for update of w skip locked;

-- name: list_dead_unregistered_processes
-- Dead processes that are no workers, so that no takeover finds them. Only of the last day, after which their leases
-- are deleted.
select l.boot from deputize.leases l
where l.expires_at + make_interval(secs => $1) < now()
  and not exists (select from deputize.workers w where w.boot = l.boot)
order by l.expires_at desc limit 500;

-- name: count_live_workers
select count(*) from deputize.workers w join deputize.leases l on l.boot = w.boot where l.expires_at > now();

-- name: delete_worker
delete from deputize.workers where boot = $1;

-- name: insert_callback
with inserted as (
    insert into deputize.callbacks (tenant, id, request) values ($1, $2, $3) on conflict do nothing
)
update deputize.calls set has_callback = true where tenant = $1 and id = $2;

-- name: list_cancel_requests
-- For all runs of one process at once.
select k.tenant, k.id from deputize.calls k
where k.owner = $1 and k.state = 'running' and k.cancel_requested_at is not null;

-- name: load_last_progress_seq
select coalesce(max(seq), 0) from deputize.progress where tenant = $1 and id = $2;

-- name: insert_progress
-- Only by the owner; a worker whose run was taken over reports nothing any more.
insert into deputize.progress (tenant, id, seq, report, partial)
select $1, $2, p.seq, p.report, p.partial
from unnest($5::integer[], $6::bytea[], $7::boolean[]) as p (seq, report, partial)
where exists (select from deputize.calls k where k.tenant = $1 and k.id = $2 and k.owner = $3 and k.owner_epoch = $4
              and k.state = 'running')
on conflict do nothing;

-- name: delete_old_progress
-- Of calls that have ended, some at a time.
delete from deputize.progress p using (
    select o.tenant, o.id, o.seq from deputize.progress o
    where o.at < now() - make_interval(days => $1)
      and exists (select from deputize.calls k where k.tenant = o.tenant and k.id = o.id
                  and k.state not in ('queued', 'running', 'unknown')
                  and not deputize.is_call_held(k.tenant, k.id, k.caller_user))
    order by o.at limit 10000) as old
where p.tenant = old.tenant and p.id = old.id and p.seq = old.seq;

-- name: delete_progress_before
delete from deputize.progress where tenant = $1 and id = $2 and not partial and seq < $3;

-- name: claim_periodic_task
select deputize.claim_periodic_task(p_name => $1, p_minutes => $2);

-- name: delete_old_payloads
select deputize.delete_old_payloads(p_days => $1);

-- name: delete_ended_grants
select deputize.delete_ended_grants(p_days => $1, p_limit => $2);

-- name: delete_old_turns
-- Of users who queued nothing for a day: whatever they queue next begins with the turn that is served then.
delete from deputize.queue_turns where used_at < now() - interval '1 day';

-- name: delete_old_decisions
select deputize.delete_old_decisions(p_days => $1, p_limit => $2);

-- name: inspect_queues
-- What waits for workers and for the sequencer, of all tenants, and by the database's clock when. Ids contain the time.
select (extract(epoch from clock_timestamp()) * 1000)::bigint as now_ms, c.count as queued_calls,
       c.oldest_id as oldest_call, e.count as unlogged_entries, e.oldest_id as oldest_entry
from (
    select count(*) as count, min(q.id::text)::uuid as oldest_id
    from (select k.id from deputize.calls k where k.state = 'queued' limit $1) as q
) as c, (
    select count(*) as count, min(q.entry_id::text)::uuid as oldest_id
    from (select n.entry_id from deputize.log_queue n limit $1) as q
) as e;
