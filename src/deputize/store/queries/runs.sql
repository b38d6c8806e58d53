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
-- Leases long over that no open call refers to any more.
delete from deputize.leases l
where l.expires_at < now() - interval '1 day'
  and not exists (select from deputize.calls k where k.owner = l.boot and k.state = 'running');
