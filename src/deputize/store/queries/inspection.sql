-- Facts about a database for `deputize doctor`: store/database_checks.py.

-- name: describe_server
-- What the server is, and whether its settings keep committed data safe.
select current_setting('server_version_num')::integer as version_number,
       current_setting('server_version') as version,
       session_user::text as login,
       current_setting('fsync') = 'on' as fsync,
       current_setting('full_page_writes') = 'on' as full_page_writes,
       current_setting('synchronous_commit') as synchronous_commit,
       current_setting('synchronous_standby_names') as standbys,
       pg_is_in_recovery() as is_standby,
       exists (select from pg_available_extensions where name = 'vector') as has_vector,
       extract(epoch from clock_timestamp())::float8 as clock,
       pg_database_size(current_database()) as bytes;

-- name: list_roles
-- The roles must exist and have no power to bypass row-level security. A gateway's login needs all but the owner's.
select wanted.name,
       rolname is not null as is_there,
       coalesce(wanted.name = 'deputize_owner' or pg_has_role(session_user, oid, 'member'), false) as may_become,
       coalesce(rolsuper or rolbypassrls, false) as passes_security_by
from unnest(array['deputize_owner', 'deputize_writer', 'deputize_reader', 'deputize_engine']) as wanted (name)
left join pg_roles on rolname = wanted.name
order by wanted.name;

-- name: list_tables_without_row_security
-- Tables with a tenant where row-level security is not forced. Partitions are only reached through their parents.
select pg_class.relname
from pg_class
join pg_namespace on pg_namespace.oid = relnamespace and nspname = 'deputize'
join pg_attribute on attrelid = pg_class.oid and attname = 'tenant' and not attisdropped
where relkind in ('r', 'p') and not relispartition and not (relrowsecurity and relforcerowsecurity)
order by relname;

-- name: list_login_powers
-- What makes this login able to rewrite the audit. A superuser is a member of every role, so nothing else is said of one.
with login as (select rolsuper, rolbypassrls from pg_roles where rolname = session_user),
     roles as (
         select oid, rolname, rolsuper from pg_roles
         where pg_has_role(session_user, oid, 'member') and not (select rolsuper from login)
     )
select 'it is a superuser' from login where rolsuper
union all
select 'it bypasses row-level security' from login where rolbypassrls and not rolsuper
union all
select 'it is a member of ' || rolname from roles
where rolname in ('deputize_owner', 'pg_write_all_data', 'pg_write_server_files', 'pg_execute_server_program')
   or (rolsuper and rolname <> session_user)
union all
select 'it owns ' || count(*) || ' tables of the schema deputize'
from pg_class join roles on roles.oid = relowner
where relnamespace = to_regnamespace('deputize') and relkind in ('r', 'p') and rolname <> 'deputize_owner'
having count(*) > 0
union all
select 'it owns the schema deputize' from pg_namespace join roles on roles.oid = nspowner
where nspname = 'deputize' and rolname <> 'deputize_owner'
union all
select 'it may update, delete or truncate audit entries'
where not (select rolsuper from login)
  and exists (
      select from pg_class
      where (oid = to_regclass('deputize.audit_entries')
             or oid in (select inhrelid from pg_inherits where inhparent = to_regclass('deputize.audit_entries')))
        and not exists (select from roles where roles.oid = relowner)
        and has_table_privilege(session_user, oid, 'update, delete, truncate, trigger')
  );

-- name: count_partition_days_ahead
-- For how many days after today every partitioned table has a partition.
select coalesce(min(days), -1)::integer
from (
    select parent, max(day) - (now() at time zone 'utc')::date as days
    from unnest(array['calls', 'sealed_payloads', 'audit_entries']) as parents (parent)
    cross join lateral (
        select to_date(right(child.relname, 8), 'YYYYMMDD') as day
        from pg_inherits
        join pg_class child on child.oid = inhrelid
        where inhparent = to_regclass('deputize.' || parent) and child.relname ~ '_[0-9]{8}$'
    ) as partitions
    group by parent
) as newest;

-- name: check_runs_schema
select to_regclass('deputize.workers') is not null;

-- name: count_workers_and_runs
-- How many workers are alive and how many runs wait; the count stops at 10,000.
select (select count(*) from deputize.workers w join deputize.leases l on l.boot = w.boot where l.expires_at > now())
           as alive,
       (select count(*) from (select from deputize.calls where state = 'queued' limit 10000) as waiting) as queued;
