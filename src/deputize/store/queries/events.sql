-- Events for other systems: operations/background/events/.

-- name: ensure_sink
insert into deputize.event_sinks (name) values ($1) on conflict do nothing;

-- name: inspect_sink
select owner = $1 and expires_at > now() as is_held, expires_at <= now() or owner is null as is_free,
       expires_at < now() + make_interval(secs => $2) as is_renewal_due, started_at is not null as is_started
from deputize.event_sinks where name = $3;

-- name: claim_sink
update deputize.event_sinks
set owner = $1, epoch = epoch + 1, expires_at = now() + make_interval(secs => $2)
where name = $3 and (expires_at <= now() or owner is null) returning epoch;

-- name: renew_sink
-- Locks the row until the transaction ends, so that no other process takes over in the middle of it.
update deputize.event_sinks set expires_at = clock_timestamp() + make_interval(secs => $3)
where owner = $1 and epoch = $2 and name = $4 returning true;

-- name: release_sink
update deputize.event_sinks set owner = null, expires_at = now() where owner = $1 and name = $2;

-- name: start_sink
update deputize.event_sinks set started_at = now() where name = $1 and started_at is null;

-- name: skip_logged_entries
-- Begin at the end of every log that exists; logs that begin later are sent from their first entry.
insert into deputize.event_positions (tenant, sink, next_index)
select l.tenant, $1, l.size from (
    select t.tenant, coalesce((select max(e.leaf_index) + 1 from deputize.log_leaves e where e.tenant = t.tenant), 0)
    from deputize.tenants t
) as l (tenant, size)
where l.size > 0
on conflict do nothing;

-- name: list_waiting_tenants
-- Some tenants with entries that a sink has not got, after a tenant.
select t.tenant, coalesce(p.next_index, 0) as next_index
from deputize.tenants t
left join deputize.event_positions p on p.tenant = t.tenant and p.sink = $1
where t.tenant > $2 and ($4::text[] is null or t.tenant = any ($4))
  and exists (
    select from deputize.log_leaves l where l.tenant = t.tenant and l.leaf_index >= coalesce(p.next_index, 0))
order by t.tenant limit $3;

-- name: load_logged_entries
-- An entry that is too large for an entry bundle is named by its size and digest, as in the log.
select w.tenant, e.leaf_index, e.entry_id, a.call_id, octet_length(a.entry) as entry_size,
       case when octet_length(a.entry) <= $4 then a.entry end as entry,
       case when octet_length(a.entry) > $4 then sha256(a.entry) end as entry_digest
from unnest($1::text[], $2::bigint[]) as w (tenant, next_index)
cross join lateral (
    select l.leaf_index, l.entry_id from deputize.log_leaves l
    where l.tenant = w.tenant and l.leaf_index >= w.next_index and l.leaf_index < w.next_index + $3
) as e
left join deputize.audit_entries a on a.tenant = w.tenant and a.id = e.entry_id
order by w.tenant, e.leaf_index;

-- name: move_positions
insert into deputize.event_positions (tenant, sink, next_index)
select m.tenant, $1, m.next_index from unnest($2::text[], $3::bigint[]) as m (tenant, next_index)
on conflict (tenant, sink) do update set next_index = excluded.next_index
where event_positions.next_index < excluded.next_index;

-- name: lock_sink
-- As renewing the lease does, which comes before the position is stored.
select name from deputize.event_sinks where name = $1 for update;

-- name: load_next_event
-- The next entry that a sink gets of a tenant; without entry_id if it has got all.
select coalesce(p.next_index, 0) as next_index, l.entry_id
from deputize.tenants t
left join deputize.event_positions p on p.tenant = t.tenant and p.sink = $1
left join deputize.log_leaves l on l.tenant = t.tenant and l.leaf_index = coalesce(p.next_index, 0)
where t.tenant = $2;

-- name: record_success
update deputize.event_sinks
set sent_count = sent_count + $2, sent_at = case when $2 > 0 then clock_timestamp() else sent_at end, failures = 0
where name = $1;

-- name: record_failure
update deputize.event_sinks set failures = failures + 1, last_error = $2, failed_at = clock_timestamp() where name = $1;

-- name: load_lag
-- The oldest entry that a sink has not got, logged or still queued for the log, and what the database's clock says.
select (extract(epoch from clock_timestamp()) * 1000)::bigint as now_ms, (
    select w.entry_id from (
        (select l.entry_id from deputize.tenants t
         left join deputize.event_positions p on p.tenant = t.tenant and p.sink = $1
         cross join lateral (
             select e.entry_id from deputize.log_leaves e
             where e.tenant = t.tenant and e.leaf_index >= coalesce(p.next_index, 0) order by e.leaf_index limit 1
         ) as l
         where $2::text[] is null or t.tenant = any ($2)
         order by l.entry_id limit 1)
        union all
        (select q.entry_id from deputize.tenants t
         cross join lateral (
             select n.entry_id from deputize.log_queue n where n.tenant = t.tenant order by n.number limit 1
         ) as q
         where $2::text[] is null or t.tenant = any ($2)
         order by q.entry_id limit 1)
    ) as w order by w.entry_id limit 1
) as entry_id;

-- name: count_waiting_entries
select coalesce(sum(l.size - least(coalesce(p.next_index, 0), l.size)), 0)::bigint
from (
    select t.tenant, coalesce((select max(e.leaf_index) + 1 from deputize.log_leaves e where e.tenant = t.tenant), 0)
    from deputize.tenants t where $2::text[] is null or t.tenant = any ($2)
) as l (tenant, size)
left join deputize.event_positions p on p.tenant = l.tenant and p.sink = $1;

-- name: list_sinks
select name, owner is not null and expires_at > now() as is_held, started_at, sent_count, sent_at, failures, last_error,
       failed_at
from deputize.event_sinks order by name;

-- name: list_tenant_names
select tenant from deputize.tenants order by tenant;
