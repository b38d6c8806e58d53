-- name: server
-- What the server is and how carefully it keeps what it was given.
select current_setting('server_version_num')::integer as version_number,
       current_setting('server_version') as version,
       current_setting('fsync') = 'on' as fsync,
       current_setting('full_page_writes') = 'on' as full_page_writes,
       current_setting('synchronous_commit') as synchronous_commit,
       current_setting('synchronous_standby_names') as standbys,
       pg_is_in_recovery() as is_standby,
       exists (select from pg_available_extensions where name = 'vector') as has_vector,
       extract(epoch from clock_timestamp())::float8 as clock,
       pg_database_size(current_database()) as bytes;

-- name: roles
-- Reader and writer must exist, be ours to become, and have no power that would pass row-level security by.
select wanted.name,
       rolname is not null as is_there,
       coalesce(pg_has_role(session_user, oid, 'member'), false) as may_become,
       coalesce(rolsuper or rolbypassrls, false) as passes_security_by
from unnest(array['deputize_owner', 'deputize_writer', 'deputize_reader']) as wanted (name)
left join pg_roles on rolname = wanted.name
order by wanted.name;

-- name: unguarded_tables
-- Tables with a tenant where row-level security is not forced; partitions are reached through their parents.
select pg_class.relname
from pg_class
join pg_namespace on pg_namespace.oid = relnamespace and nspname = 'deputize'
join pg_attribute on attrelid = pg_class.oid and attname = 'tenant' and not attisdropped
where relkind in ('r', 'p') and not relispartition and not (relrowsecurity and relforcerowsecurity)
order by relname;

-- name: audit_is_append_only
select not has_table_privilege('deputize_writer', 'deputize.audit_entries', 'update, delete, truncate');

-- name: days_ahead
-- For how many days after today every partitioned table has its partition.
select coalesce(min(days), -1)::integer
from (
    select parent, max(day) - (now() at time zone 'utc')::date as days
    from unnest(array['calls', 'sealed', 'audit_entries']) as parents (parent)
    cross join lateral (
        select to_date(right(child.relname, 8), 'YYYYMMDD') as day
        from pg_inherits
        join pg_class child on child.oid = inhrelid
        where inhparent = to_regclass('deputize.' || parent) and child.relname ~ '_[0-9]{8}$'
    ) as partitions
    group by parent
) as newest;

-- name: has_runs
select to_regclass('deputize.workers') is not null;

-- name: runs
-- Who could carry runs, and how many wait for somebody; of very many only that there are.
select (select count(*) from deputize.workers w join deputize.leases l on l.boot = w.boot where l.expires_at > now())
           as alive,
       (select count(*) from (select from deputize.calls where state = 'queued' limit 10000) as waiting) as queued;
