-- Describes a table whose rows are changed: its columns, its key, and what a change of a row sets off.
with members as (
  -- A partitioned table and its partitions, which have triggers of their own.
  select t.relid as oid from pg_catalog.pg_partition_tree($1::text::regclass) t
  union
  select $1::text::regclass
), triggers as (
  select tgname::text as name, tgtype::integer as kinds from pg_catalog.pg_trigger
  where tgrelid in (select oid from members) and not tgisinternal and tgenabled in ('O', 'A')
  union
  select rulename::text, case ev_type when '2' then 16 when '3' then 4 else 8 end from pg_catalog.pg_rewrite
  where ev_class in (select oid from members) and ev_type <> '1' and ev_enabled in ('O', 'A')
)
select
  array(select oid::bigint from members) as members,
  (select relkind::text from pg_catalog.pg_class where oid = $1::text::regclass) as kind,
  current_setting('track_counts')::boolean as counts,
  has_table_privilege($1, 'INSERT') as may_insert,
  has_table_privilege($1, 'DELETE') as may_delete,
  array(
    select jsonb_build_object(
      'name', attname, 'type', format_type(atttypid, -1),
      'base', format_type(coalesce(nullif(typbasetype, 0), t.oid), -1),
      'is_array', (
        select b.typcategory = 'A' from pg_catalog.pg_type b where b.oid = coalesce(nullif(t.typbasetype, 0), t.oid)
      ),
      'is_generated', attgenerated <> '', 'is_readable', has_column_privilege(attrelid, attnum, 'SELECT')
    )::text
    from pg_catalog.pg_attribute join pg_catalog.pg_type t on t.oid = atttypid
    where attrelid = $1::text::regclass and attnum > 0 and not attisdropped
    order by attnum
  ) as columns,
  array(
    select attname::text
    from pg_catalog.pg_index i cross join lateral unnest(indkey) with ordinality as parts (number, place)
      join pg_catalog.pg_attribute on attrelid = indrelid and attnum = parts.number
    where indrelid = $1::text::regclass and indisprimary
    order by place
  ) as key,
  array(select name from triggers where kinds & $2 > 0 order by name) as triggers,
  array(
    -- Tables of which rows are changed or removed with a row that they refer to.
    select distinct conrelid::bigint from pg_catalog.pg_constraint
    where contype = 'f' and confrelid in (select oid from members)
      and case $2 when 8 then confdeltype when 16 then confupdtype end in ('c', 'n', 'd')
  ) as followers
