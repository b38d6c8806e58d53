-- What a restored copy has, and the live database beside it: cli/local/drills.py.

-- name: describe_tenants
select t.tenant,
    coalesce((select max(l.leaf_index) + 1 from deputize.log_leaves l where l.tenant = t.tenant), 0)
        + (select count(*) from deputize.log_queue q where q.tenant = t.tenant) as entries,
    (select a.id::text from deputize.audit_entries a where a.tenant = t.tenant order by a.id desc limit 1) as newest,
    coalesce(e.registry, 0) as registry, coalesce(e.policy, 0) as policy, coalesce(e.revocation, 0) as revocation
from deputize.tenants t left join deputize.epochs e on e.tenant = t.tenant
order by t.tenant;

-- name: list_lineages
select id::text from deputize.lineages;

-- name: is_in_use
select exists (select from deputize.leases where expires_at > now());

-- name: lock_shared_name
select pg_advisory_xact_lock($1);

-- name: is_name_free
select pg_try_advisory_xact_lock($1);

-- name: list_succeeded
select id::text from deputize.calls where tenant = $1 and id = any($2::uuid[]) and state = 'succeeded';

-- name: identify_server
select pg_postmaster_start_time()::text;

-- name: has_synchronous_standby
select exists (select from pg_stat_replication where sync_state in ('sync', 'quorum'));
