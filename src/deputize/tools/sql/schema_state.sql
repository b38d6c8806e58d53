-- Lists what the schemas in $1 define, a line for each part, to compare two states of a schema.
with relations as (
  select c.oid, quote_ident(nspname) || '.' || quote_ident(relname) as name, relkind
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = relnamespace
  where nspname = any ($1::text[])
)
select format('column %s.%I %s%s%s', r.name, attname, format_type(atttypid, atttypmod),
  case when attnotnull then ' not null' else '' end,
  coalesce(case when attgenerated = '' then ' default ' else ' generated ' end || pg_get_expr(adbin, adrelid), '')
    || case attidentity when '' then '' else ' identity ' || attidentity::text end) as line
from relations r join pg_catalog.pg_attribute a on attrelid = r.oid
left join pg_catalog.pg_attrdef d on adrelid = attrelid and adnum = attnum
where relkind in ('r', 'p', 'f') and attnum > 0 and not attisdropped
union all
select format('constraint %s.%I %s', r.name, conname, pg_get_constraintdef(k.oid))
from relations r join pg_catalog.pg_constraint k on conrelid = r.oid where contype <> 'n'
union all
select pg_get_indexdef(oid) from relations where relkind in ('i', 'I')
union all
select format('view %s as %s', name, pg_get_viewdef(oid)) from relations where relkind in ('v', 'm')
union all
select format('table %s', name) from relations where relkind in ('r', 'p', 'f')
union all
select format('sequence %s', name) from relations where relkind = 'S'
union all
select format('trigger on %s: %s', r.name, pg_get_triggerdef(t.oid))
from relations r join pg_catalog.pg_trigger t on tgrelid = r.oid where not tgisinternal
union all
select format('type %s.%I (%s)', quote_ident(nspname), typname,
  (select string_agg(quote_literal(enumlabel), ', ' order by enumsortorder) from pg_catalog.pg_enum where enumtypid = t.oid))
from pg_catalog.pg_type t join pg_catalog.pg_namespace n on n.oid = typnamespace
where nspname = any ($1::text[]) and typtype = 'e'
order by line
