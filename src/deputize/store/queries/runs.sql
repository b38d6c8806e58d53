-- name: renew_lease
-- Extends (or makes) this boot's lease and tells PostgreSQL's time in milliseconds.
insert into deputize.leases (boot, expires_at, release)
values ($1, now() + make_interval(secs => $2), $3)
on conflict (boot) do update set expires_at = excluded.expires_at
returning (extract(epoch from clock_timestamp()) * 1000)::bigint;

-- name: end_lease
-- A clean stop: nobody has to wait for this lease to run out.
update deputize.leases set expires_at = now() where boot = $1;

-- name: find_abandoned
-- Open calls past their own deadline whose owner's lease ended, with a margin on both; and, long after the deadline, any
-- open call: its owner lives, but nobody there can be running it any more. Locked, skipping what another sweeper holds.
-- Executes nothing: the caller marks them unknown in the same transaction, and a late outcome still settles them.
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

-- name: mark_unknown
update deputize.calls set state = 'unknown', ended_at = now(), error = 'outcome-unknown'
where tenant = $1 and id = $2 and owner_epoch = $3 and state = 'running';

-- name: add_entry
insert into deputize.audit_entries (tenant, id, call_id, entry, salt) values ($1, $2, $3, $4, $5)
on conflict do nothing;

-- name: make_partitions
call deputize.make_partitions(7);

-- name: forget_dead_leases
-- Leases long over that no open call refers to any more, and no worker whose runs are still to be taken over.
delete from deputize.leases l
where l.expires_at < now() - interval '1 day'
  and not exists (select from deputize.calls k where k.owner = l.boot and k.state = 'running')
  and not exists (select from deputize.workers w where w.boot = l.boot);

-- name: run_to_go_on
-- From the primary, in the states a run can be gone on with; what ended, or was canceled before it began, is not here.
select k.tool, k.version, k.tool_digest, k.session, k.owner_epoch, k.state, k.asked, s.box as input, r.caller, r.queued_at,
       coalesce(r.not_after <= now(), false) as over, r.takeovers, r.untouched,
       k.cancel_asked is not null as cancel_asked,
       k.state = 'running' and exists (select from deputize.leases l where l.boot = k.owner
           and l.expires_at + make_interval(secs => $3) > now()) as owner_alive,
       extract(epoch from now() - r.unable_since)::float8 as unable_seconds
from deputize.calls k
join deputize.runs r on r.tenant = k.tenant and r.id = k.id
left join deputize.sealed s on s.tenant = k.tenant and s.id = k.id and s.kind = 'input'
where k.tenant = $1 and k.id = $2 and k.state in ('queued', 'running', 'unknown');

-- name: put_back
select deputize.put_back($1, $2, $3, $4);

-- name: undo_begin
select deputize.undo_begin($1, $2, $3, $4, $5);

-- name: tidy_lines
select deputize.tidy_lines();

-- name: tenants_that_wait
-- How many tenants have runs that nobody carries yet, and no more than so many: one step of the index for each.
with recursive waiting as (
    (select tenant from deputize.calls where state = 'queued' order by tenant limit 1)
    union all
    select (select k.tenant from deputize.calls k where k.state = 'queued' and k.tenant > w.tenant order by k.tenant limit 1)
    from waiting w where w.tenant is not null
)
select count(*) from (select from waiting where tenant is not null limit $1) as found;

-- name: add_worker
insert into deputize.workers (boot, release) values ($1, $2) on conflict do nothing;

-- name: lock_dead_worker
select w.boot from deputize.workers w join deputize.leases l on l.boot = w.boot
where l.expires_at + make_interval(secs => $1) < now()
order by l.expires_at limit 1
for update of w skip locked;

-- name: dead_and_not_enlisted
-- Processes that are gone and that no takeover looks at; of the last day, after which their leases are forgotten.
select l.boot from deputize.leases l
where l.expires_at + make_interval(secs => $1) < now()
  and not exists (select from deputize.workers w where w.boot = l.boot)
order by l.expires_at desc limit 500;

-- name: worker_is_buried
delete from deputize.workers where boot = $1;

-- name: continue_run
select * from deputize.continue_run($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: add_callback
with asked as (
    insert into deputize.callbacks (tenant, id, asked) values ($1, $2, $3) on conflict do nothing
)
update deputize.calls set callback = true where tenant = $1 and id = $2;

-- name: asked_to_stop
-- Of the runs one process carries; a look for all of them at once.
select k.tenant, k.id from deputize.calls k
where k.owner = $1 and k.state = 'running' and k.cancel_asked is not null;

-- name: last_progress
select coalesce(max(seq), 0) from deputize.progress where tenant = $1 and id = $2;

-- name: add_progress
-- Only by the owner that still holds the run: whoever was taken over tells nothing any more.
insert into deputize.progress (tenant, id, seq, told, partial)
select $1, $2, p.seq, p.told, p.partial
from unnest($5::integer[], $6::bytea[], $7::boolean[]) as p (seq, told, partial)
where exists (select from deputize.calls k where k.tenant = $1 and k.id = $2 and k.owner = $3 and k.owner_epoch = $4
              and k.state = 'running')
on conflict do nothing;

-- name: forget_old_progress
-- Of calls that are over, some at a time: whoever looks later is told how they ended.
delete from deputize.progress p using (
    select o.tenant, o.id, o.seq from deputize.progress o
    where o.at < now() - make_interval(days => $1)
      and exists (select from deputize.calls k where k.tenant = o.tenant and k.id = o.id
                  and k.state not in ('queued', 'running', 'unknown'))
    order by o.at limit 10000) as old
where p.tenant = old.tenant and p.id = old.id and p.seq = old.seq;

-- name: forget_progress
delete from deputize.progress where tenant = $1 and id = $2 and not partial and seq < $3;

-- name: begin_chore
select deputize.begin_chore($1, $2);

-- name: forget_originals
select deputize.forget_originals($1);
