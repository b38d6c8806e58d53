-- Lineages of the database: store/restore_guard.

-- name: read_lineage
select * from deputize.read_lineage();

-- name: set_role
select set_config('role', $1, true);

-- name: find_missing_entry
select m.id from unnest($1::text[], $2::uuid[]) as m(tenant, id)
where not exists (select from deputize.audit_entries a where a.tenant = m.tenant and a.id = m.id) limit 1;

-- name: find_missing_checkpoint
select m.tenant, m.size from unnest($1::text[], $2::bigint[], $3::bytea[]) as m(tenant, size, root)
where not exists (
    select from deputize.log_checkpoints c where c.tenant = m.tenant and c.size = m.size and c.root = m.root
) limit 1;

-- name: list_known_lineages
select id::text from deputize.lineages where id = any($1::uuid[]);

-- name: stop_gateways
update deputize.lineages set went_back_at = clock_timestamp(), went_back_reason = $2
where id = $1 and went_back_at is null;

-- name: lock_all_barriers
-- For the transaction that begins a lineage: no call and no act commits beside it.
select pg_advisory_xact_lock(k) from (select deputize.barrier_key(tenant) as k from deputize.tenants order by 1) as keys;

-- name: insert_lost_lineage
insert into deputize.lineages (id, number, went_back_at, went_back_reason)
values ($1, $2, clock_timestamp(), 'a restore lost this lineage');

-- name: begin_lineage
select * from deputize.begin_lineage(p_number => $1, p_epochs => $2);

-- name: list_tenants
select tenant from deputize.tenants order by tenant;

-- name: is_key_claimed
-- A claim whose window is over is free, and says nothing of the time that was lost.
select exists (
    select from deputize.claims c join deputize.calls k on k.tenant = c.tenant and k.id = c.call_id
    where c.tenant = $1 and c.scope = $2 and c.key = $3 and (k.window_ends is null or k.window_ends > now())
);
