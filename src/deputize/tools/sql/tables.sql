-- Lists tables that the login may read, with columns, keys and what they refer to.
with allowed as (
  select c.oid, n.nspname, c.relname, c.relkind, c.reltuples
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  where c.relkind in ('r', 'p', 'v', 'm', 'f') and not c.relispartition
    and (n.nspname || '.*' = any ($1::text[]) or n.nspname || '.' || c.relname = any ($1::text[]))
    and has_schema_privilege(n.oid, 'USAGE') and has_any_column_privilege(c.oid, 'SELECT')
    and position(lower($2) in lower(n.nspname || '.' || c.relname)) > 0
  order by n.nspname, c.relname
  offset $3 limit $4
)
select nspname as schema, relname as name,
  case relkind when 'v' then 'view' when 'm' then 'materialized view' when 'f' then 'foreign table' else 'table' end
    as kind,
  greatest(reltuples, 0)::bigint as rows, coalesce(obj_description(allowed.oid, 'pg_class'), '') as comment,
  (
    select coalesce(array_agg(a.attname::text order by a.attnum), '{}')
    from pg_catalog.pg_attribute a
    where a.attrelid = allowed.oid and a.attnum > 0 and not a.attisdropped
      and has_column_privilege(allowed.oid, a.attnum, 'SELECT')
  ) as columns,
  (
    select coalesce(array_agg(format('%s %s%s', quote_ident(a.attname), format_type(a.atttypid, a.atttypmod),
      case when a.attnotnull then '' else '?' end)
      || coalesce(' -- ' || col_description(allowed.oid, a.attnum), '') order by a.attnum), '{}')
    from pg_catalog.pg_attribute a
    where a.attrelid = allowed.oid and a.attnum > 0 and not a.attisdropped
      and has_column_privilege(allowed.oid, a.attnum, 'SELECT')
  ) as column_texts,
  (
    select coalesce(array_agg(
      case k.contype
        when 'p' then 'primary key (' || names.own || ')'
        when 'u' then 'unique (' || names.own || ')'
        else format('%s > %I.%I (%s)', names.own, fn.nspname, f.relname, names.foreign)
      end order by k.contype desc, k.conname), '{}')
    from pg_catalog.pg_constraint k
    left join pg_catalog.pg_class f on f.oid = k.confrelid
    left join pg_catalog.pg_namespace fn on fn.oid = f.relnamespace
    cross join lateral (
      select
        (select string_agg(quote_ident(attname), ', ' order by place) from unnest(k.conkey) with ordinality as o (num, place)
          join pg_catalog.pg_attribute on attrelid = k.conrelid and attnum = num) as own,
        (select string_agg(quote_ident(attname), ', ' order by place) from unnest(k.confkey) with ordinality as o (num, place)
          join pg_catalog.pg_attribute on attrelid = k.confrelid and attnum = num) as foreign
    ) as names
    where k.conrelid = allowed.oid and k.contype in ('p', 'u', 'f') and k.conparentid = 0
  ) as keys
from allowed
order by nspname, relname
