-- Lists what the login could change, through any role that it is a member of, but for the rows of the tables in $1.
-- Empty for a role that only reads, or only changes those. Of a login that may change its own database, only the
-- places up to $2 count: what reaches beyond that.
with changeable as (
  select c.oid
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = relnamespace
  where relkind in ('r', 'p') and nspname || '.' || relname = any ($1::text[])
), numbering as (
  -- Sequences that number rows of these tables.
  select objid as oid from pg_catalog.pg_depend
  where classid = 'pg_class'::regclass and refobjid in (select oid from changeable) and deptype in ('a', 'i')
  union
  select d.refobjid
  from pg_catalog.pg_depend d join pg_catalog.pg_attrdef a on d.classid = 'pg_attrdef'::regclass and d.objid = a.oid
  where adrelid in (select oid from changeable) and d.refclassid = 'pg_class'::regclass
), roles as (
  select oid, rolname, rolsuper, rolbypassrls, rolcreaterole, rolcreatedb, rolreplication
  from pg_catalog.pg_roles
  where pg_has_role(session_user, oid, 'MEMBER')
), login as (
  select * from roles where rolname = session_user
), rights as (
  select 1 as place, 'is a superuser' as what from login where rolsuper
  union all
  select 2, format('is a member of %I, which is a superuser, bypasses row security, replicates, or creates roles or '
    'databases', rolname)
  from roles
  where rolbypassrls or rolcreaterole or rolcreatedb or rolreplication or rolsuper
  union all
  -- What they grant is not seen in the privileges of tables, or reaches files, programs and other sessions.
  select 3, format('is a member of %I', rolname)
  from roles
  where rolname ~ '^pg_' and rolname <> 'pg_read_all_data' and ($2 > 3 or rolname <> 'pg_database_owner')
  union all
  select 4, format('may change %I.%I', nspname, relname)
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = relnamespace, roles
  where relkind in ('r', 'p', 'v', 'm', 'f') and c.oid <> 'pg_catalog.pg_settings'::regclass
    and (
      has_table_privilege(roles.oid, c.oid, 'TRUNCATE, REFERENCES, TRIGGER')
      or has_any_column_privilege(roles.oid, c.oid, 'REFERENCES')
      or relowner = roles.oid
      or c.oid not in (select oid from changeable) and (
        has_table_privilege(roles.oid, c.oid, 'INSERT, UPDATE, DELETE')
        or has_any_column_privilege(roles.oid, c.oid, 'INSERT, UPDATE')
      )
    )
  union all
  select 5, format('may advance sequence %I.%I', nspname, relname)
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = relnamespace, roles
  where relkind = 'S' and (
    has_sequence_privilege(roles.oid, c.oid, 'UPDATE')
    or has_sequence_privilege(roles.oid, c.oid, 'USAGE') and c.oid not in (select oid from numbering)
  )
  union all
  select 6, format('may create in schema %I', nspname)
  from pg_catalog.pg_namespace n, roles
  where has_schema_privilege(roles.oid, n.oid, 'CREATE')
  union all
  select 7, format('may create %s in the database: REVOKE %s ON DATABASE %I FROM PUBLIC', kind, privilege,
    current_database())
  from (values ('schemas', 'CREATE'), ('temporary tables', 'TEMP')) as kinds (kind, privilege), roles
  where has_database_privilege(roles.oid, current_database(), privilege)
  union all
  -- They run with the rights of their owner, or on another connection. Nobody can call those of triggers.
  select 8, format('may call %s, which can write: REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', p.oid::regprocedure,
    p.oid::regprocedure)
  from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = pronamespace, roles
  where nspname not in ('pg_catalog', 'information_schema') and provolatile = 'v'
    and (prosecdef or proname ~ '^dblink') and prorettype not in ('trigger'::regtype, 'event_trigger'::regtype)
    and has_function_privilege(roles.oid, p.oid, 'EXECUTE')
)
select what from (select distinct place, what from rights where place <= $2) as found order by place, what limit 5
