-- Tenants, their data keys, and the salts behind pseudonyms: store/tenants.py, keys.py and pseudonyms.py.

-- name: ensure_tenant
with made as (
    insert into deputize.tenants (tenant) values ($1) on conflict do nothing
)
insert into deputize.epochs (tenant) values ($1) on conflict do nothing;

-- name: load_tenant_keys
select version, wrapped, active_from <= now() as is_active from deputize.tenant_keys where tenant = $1 order by version;

-- name: list_rotated_tenants
-- Tenants that got another version of their key since a moment, and those whose newest version became active since.
select distinct tenant from deputize.tenant_keys
where version > 1 and greatest(created_at, active_from) > now() - make_interval(secs => $1);

-- name: lock_key_rotation
-- One rotation of a tenant's keys at a time.
select pg_advisory_xact_lock(hashtextextended('deputize key rotation ' || $1, 0));

-- name: insert_tenant_key
insert into deputize.tenant_keys (tenant, version, wrapped, master_id, active_from)
values ($1, $2, $3, $4, now() + make_interval(secs => $5));

-- name: load_newest_version
select version, active_from <= now() as is_active from deputize.tenant_keys where tenant = $1
order by version desc limit 1;

-- name: lock_keys_of_other_masters
-- A batch of the keys that the current master key has not wrapped. Several processes share the work.
select tenant, version, wrapped from deputize.tenant_keys
where master_id is distinct from $1
order by tenant, version limit $2 for no key update skip locked;

-- name: rewrap_tenant_key
update deputize.tenant_keys set wrapped = $3, master_id = $4 where tenant = $1 and version = $2;

-- name: count_keys_by_master
select master_id, count(*) as keys from deputize.tenant_keys group by master_id order by master_id;

-- name: list_newest_versions
select distinct on (tenant) tenant, version, created_at, active_from, active_from <= now() as is_active
from deputize.tenant_keys order by tenant, version desc;

-- name: list_tenants
select tenant from deputize.tenants order by tenant;

-- name: insert_first_tenant_key
-- Two processes may both try; the one that loses waits for the winner's commit and reads its key.
insert into deputize.tenant_keys (tenant, version, wrapped, master_id) values ($1, 1, $2, $3) on conflict do nothing;

-- name: load_subject_salts
select subject, salt from deputize.subjects where tenant = $1 and subject = any($2::text[]);

-- name: insert_subject_salts
-- Sorted, so that two processes that add the same subjects never wait for each other in a circle.
insert into deputize.subjects (tenant, subject, salt)
select $1, salts.subject, salts.salt from unnest($2::text[], $3::bytea[]) as salts(subject, salt)
order by salts.subject
on conflict do nothing;

-- name: delete_subject
delete from deputize.subjects where tenant = $1 and subject = $2;
