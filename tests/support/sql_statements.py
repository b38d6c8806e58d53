"""Statements for the tools `sql.*` over the shop of `sql_shop.py`: hostile ones, and honest ones with parameters."""

from itertools import product
from typing import Any, Final

# Each stands for a thing that an agent, or a text that it read, could try. {file} is a path that the server can write.
_STACKED: Final = r"""
select 1; drop table orders
select 1; commit; drop table orders
commit; delete from customers
rollback; delete from customers; begin
; delete from customers
select 1; begin; update orders set note = 'x'; commit
select 1 /* ; */; truncate order_lines
select ';' ; insert into employees values (9, 'x')
select $$;$$; delete from employees
select 1;;drop view paid_orders
end; drop table customers cascade
abort; drop table customers cascade
select '\'; drop table employees; --'
select 'a' 'b'; delete from employees --
select "a;b"; delete from employees
select 1 -- \n; delete from employees
select 1) q; delete from employees; select * from (select 1
select 1) as q (c0) offset 0; drop table orders cascade --
select 1) q, lateral (delete from employees returning 1
"""
_CHANGES: Final = r"""
insert into employees values (9, 'Eve')
insert into employees select id + 100, name from customers
update customers set name = 'x'
update only customers set name = 'x' where id = 1 returning *
delete from order_lines
delete from order_lines using orders where order_id = id returning 1
merge into employees e using customers c on e.id = c.id when matched then update set name = 'x'
truncate order_lines
truncate table customers restart identity cascade
with x as (delete from order_lines returning *) select * from x
with x as (update customers set name = 'x' returning *) select count(*) from x
with x as (insert into employees values (9, 'x') returning id) select id from x
with recursive x as (select 1), y as (delete from employees returning id) select * from y
with a as (with b as (delete from employees returning id) select * from b) select * from a
select * from (with x as (delete from employees returning id) select * from x) y
select (with x as (delete from employees returning id) select count(*) from x)
with x as materialized (delete from employees returning id) table x
with x as (merge into employees e using customers c on e.id = c.id when matched then delete returning 1) select 2
insert into employees values (1, 'x') on conflict (id) do update set name = 'x'
with x as (select 1) delete from employees
with x as (select 1) insert into employees select 9, 'x' from x
explain analyze delete from employees
explain (analyze) update customers set name = 'x'
explain (analyze true, format json) insert into employees values (9, 'x')
explain (analyze on, timing off) with x as (delete from employees returning id) select * from x
explain analyse select ship(1)
explain analyze create table stolen as select * from customers
explain delete from employees
explain (buffers, analyze) select nextval('numbers')
"""
_DEFINITIONS: Final = r"""
create table stolen (id int)
create temp table stolen as select * from customers
create unlogged table stolen as table customers
select * into stolen from customers
select * into temp stolen from customers
select id, name into unlogged table stolen from employees
with x as (select 1 as a) select a into stolen from x
select 1 as a into stolen union select 2
create materialized view stolen as select * from customers
create view stolen as select * from customers
create or replace view paid_orders as select id, customer, placed from orders
create index stolen on customers (name)
create schema stolen
create function stolen() returns int language sql as 'select 1'
create or replace function vat(price numeric) returns numeric language sql as 'select 0.0'
create trigger stolen before update on orders execute function now()
create rule stolen as on select to customers do instead nothing
create sequence stolen
create type stolen as (a int)
create domain stolen as int
create extension plpgsql
create role stolen superuser
create user stolen password 'x'
create database stolen
create publication stolen for all tables
create policy stolen on customers
create event trigger stolen on ddl_command_start execute function now()
create server stolen foreign data wrapper postgres_fdw
create cast (int as customers) without function
create aggregate stolen (int) (sfunc = int4pl, stype = int)
alter table customers add column stolen int
alter table customers owner to shop_reader
alter table customers disable row level security
alter role shop_reader superuser
alter user current_user password 'stolen'
alter role shop_owner set search_path to stolen
alter database postgres set search_path to stolen
alter system set archive_command to 'touch {file}'
alter sequence numbers restart 1000
alter function ship(bigint) security definer
alter default privileges grant insert on tables to public
alter view paid_orders rename to stolen
drop table order_lines
drop view paid_orders
drop schema public cascade
drop function ship(bigint)
drop role shop_owner
drop owned by shop_owner cascade
reassign owned by shop_owner to shop_reader
grant all on all tables in schema public to public
grant shop_owner to shop_reader
grant pg_write_all_data to shop_reader
revoke all on customers from shop_reader
comment on table customers is 'stolen'
security label on table customers is 'stolen'
reindex table customers
cluster customers using customers_pkey
vacuum customers
analyze customers
refresh materialized view stolen
import foreign schema public from server stolen into public
"""
_SESSIONS: Final = r"""
begin
begin read write
start transaction read write
commit
commit and chain
rollback
rollback to savepoint a
savepoint a
release savepoint a
prepare transaction 'stolen'
commit prepared 'stolen'
set transaction read write
set transaction isolation level serializable, read write
set session characteristics as transaction read write
set default_transaction_read_only to off
set local transaction_read_only = off
set statement_timeout to 0
set role shop_owner
set session authorization shop_owner
set local role none
reset role
reset all
discard all
set constraints all deferred
lock table customers in access exclusive mode
lock customers
listen orders
notify orders, 'stolen'
unlisten *
prepare x as delete from employees
execute x
deallocate all
declare x cursor with hold for select * from customers
fetch all from x
move 1 in x
close all
checkpoint
load 'auto_explain'
show all
select * from customers for update
select * from customers for share nowait
select * from customers for no key update skip locked
select * from (select * from customers for key share) x
select id from orders where customer in (select id from customers for update)
with x as (select * from customers for update) select * from x
"""
_PROGRAMS: Final = r"""
copy customers to '{file}'
copy customers from '/etc/passwd'
copy (select * from customers) to '{file}'
copy (select 1) to program 'touch {file}'
copy employees from program 'echo 9,x'
copy customers to stdout
copy (delete from employees returning id) to stdout
do 'begin delete from employees; end'
do language plpgsql $$begin execute 'delete from employees'; end$$
do $$ begin perform pg_sleep(0); end $$
call ship(1)
call pg_catalog.now()
"""
_FUNCTIONS: Final = r"""
select ship(1)
select public.ship(1)
select "ship"(1)
select * from ship(1)
select * from rows from (ship(1), now()) x
select (select ship(1))
select case when true then ship(1) end
select coalesce(null, ship(1)::text)
select count(*) filter (where ship(1) is null) from orders
select array(select ship(id) from orders)
select 1 order by ship(1)
select 1 limit (select ship(1)::text::int)
select 1 offset (select count(ship(1)))
select sum(1) over (partition by ship(1)::text)
select 1 group by ship(1)::text
select 1 from orders having ship(1) is null
values (ship(1))
select * from orders join customers on ship(1) is null
select * from orders tablesample system (length(ship(1)::text))
select json_object('a': ship(1))
select json_exists('{}'::jsonb, '$' passing ship(1)::text as x)
select json_value(profile, '$.age' default ship(1)::text on empty) from customers
select json_scalar(ship(1))
select json(ship(1)::text)
select x from json_table('[1]', '$[*]' columns (x text path '$' default ship(1)::text on empty)) t
select (1::bigint).ship
select (b.id).ship from orders b
select b.ship from generate_series(1::bigint, 1) b
select * from (values (1::bigint)) v (id), lateral (select (v.id).ship) x
select U&"\0073hip"(1)
select label(c) from customers c
select c.label from customers c
select nextval('numbers')
select nextval('numbers'::regclass)
select setval('numbers', 1000)
select currval('numbers')
select lastval()
select pg_catalog.setval('numbers', 5, false)
select ('numbers'::regclass).nextval
select set_config('role', 'shop_owner', false)
select set_config('transaction_read_only', 'off', false)
select set_config('default_transaction_read_only', 'off', false), set_config('statement_timeout', '0', false)
select current_setting('data_directory')
select pg_read_file('/etc/passwd')
select pg_read_binary_file('/etc/passwd')
select pg_ls_dir('.')
select * from pg_ls_waldir()
select pg_stat_file('.')
select pg_terminate_backend(pid) from pg_stat_activity
select pg_terminate_backend({pid})
select pg_cancel_backend({pid})
select ({pid}).pg_cancel_backend
select pg_reload_conf()
select pg_rotate_logfile()
select pg_switch_wal()
select pg_create_restore_point('stolen')
select pg_promote()
select pg_advisory_lock(1)
select pg_try_advisory_xact_lock(1)
select pg_sleep(10)
select pg_sleep_for('10 s')
select (0.1::float8).pg_sleep
select s.pg_sleep from generate_series(0.1::float8::numeric, 0.1) s
select pg_export_snapshot()
select pg_stat_reset()
select pg_stat_reset_shared('bgwriter')
select pg_logical_emit_message(false, 'a', 'b')
select pg_create_physical_replication_slot('stolen')
select pg_drop_replication_slot('stolen')
select pg_log_backend_memory_contexts({pid})
select txid_current()
select pg_current_xact_id()
select lo_export(4711, '{file}')
select lo_import('/etc/passwd')
select lo_get(4711)
select (4711::oid).lo_unlink
select dblink('dbname=postgres', 'drop table customers')
select dblink_exec('dbname=postgres', 'drop table customers')
select * from dblink('', 'select 1') as t (a int)
select query_to_xml('delete from employees', true, true, '')
select query_to_xml('select pg_read_file(''/etc/passwd'')', true, true, '')
select table_to_xml('private.salaries', true, true, '')
select schema_to_xml('private', true, true, '')
select database_to_xml(true, true, '')
select cursor_to_xml('x', 1, true, true, '')
select * from ts_stat('select words from products')
select ts_rewrite('a'::tsquery, 'select ''a''::tsquery, ''b''::tsquery')
select binary_upgrade_set_next_pg_type_oid(1)
select brin_summarize_new_values('customers_pkey')
select gin_clean_pending_list('customers_pkey')
select currtid2('customers', '(0,1)')
select pg_relation_size('customers')
select has_table_privilege('shop_owner', 'customers', 'insert')
select 1 operator(public.=) 1
select public.lower('a')
select postgres.public.lower('a')
select * from xmltable('/a' passing '<a/>'::xml columns a int)
select xmlparse(document '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>')
"""
# What every login of a database may do, as long as its transaction can write.
_OF_ANY_LOGIN: Final = r"""
select lo_create(4712)
select lo_creat(-1)
select lo_from_bytea(0, 'stolen')
select lo_put(4711, 0, 'stolen')
select lo_unlink(4711)
select lo_truncate(lo_open(4711, 131072), 0)
select lowrite(lo_open(4711, 131072), 'stolen')
select pg_notify('orders', 'stolen')
"""
_READS: Final = r"""
select * from pg_authid
select * from pg_shadow
select rolpassword from pg_catalog.pg_authid
select * from pg_catalog.pg_settings
select * from pg_stat_activity
select * from pg_largeobject
select * from information_schema.tables
update pg_settings set setting = 'off' where name = 'transaction_read_only'
select * from private.salaries
select * from "private"."salaries"
select * from salaries
select amount from only private.salaries
table private.salaries
select * from postgres.public.customers
select (select max(amount) from private.salaries)
select * from customers where exists (select 1 from private.salaries)
with salaries as (select 1) select * from private.salaries
select * from (with pg_shadow as (select 1) select 1) x, pg_shadow
with pg_authid as (select * from pg_authid) select * from pg_authid
select 1 where 'private.salaries'::regclass is not null
select 'pg_authid'::regclass::oid
select 4711::regrole
select 'ship'::regproc
select '{private.salaries}'::_regclass
select (array[1259, 4711]::oid[])::"_regclass"::text
select array[10::oid]::pg_catalog._regrole
select (json_populate_record(null::pg_type, '{"typinput": "1242"}')).typinput::text
select row_to_json(json_populate_record(null::pg_catalog.pg_authid, '{}'))
select json_populate_recordset(null::_pg_proc, '[]')
select * from json_table('{}', '$' columns (x _regtype path '$'))
select * from hidden.notes
select n.name from customers c join hidden.notes n on n.id = c.id
explain (costs off) select * from hidden.notes
select (c).label from customers c
select (select c).label from customers c
select x.label from (select c from customers c) y (x)
select name from customers where name similar to (select pg_read_file('/etc/passwd'))
select U&"\0073alaries" from U&"\0070rivate".salaries
select * from U&"\0070g_authid"
"""


def _split(text: str) -> list[str]:
    return [line.replace("\\n", "\n") for line in text.strip().splitlines()]


# What they change is the memory of the server. The numbers are small: where nothing refuses them, they do no harm.
_OVERSIZED: Final = r"""
select length(repeat('x', 20000))
select length(repeat('x', (select 20000)))
select length(repeat(name, id)) from products
select length(repeat(repeat('x', 200), 200))
select length(lpad('x', 20000)), length(rpad('x', (select 10)))
select length('x'::char(20000))
select length(bpchar('x'::bpchar, 20000, true))
select length(pg_catalog.bit(1, 20000))
select length(format('%20000s', 1))
select length(format('%*s', 20000, 1))
select length(format(name, 1)) from products
select npoints(polygon(20000, circle '((0, 0), 1)'))
select cardinality(array_fill(1, array[200, 200]))
select cardinality(array_fill(1, array[(select 20000)]))
select count(*) from generate_series(1, (select 20000))
select count(*) from generate_series(1, id::int), orders
select count(*) from orders, lateral generate_series(placed, now(), interval '1 second') t
select array_length(array_agg(repeat('x', 10000) || g), 1) from generate_series(1, 20000) g
select length(string_agg(repeat('x', 10000), '')) from generate_series(1, 20000) g
select jsonb_array_length(jsonb_agg(g)) from generate_series(1, 30000000) g
select cardinality(array(select g || repeat('x', 10000) from generate_series(1, 20000) g))
select length(json_array(select g || repeat('x', 10000) from generate_series(1, 20000) g)::text)
select cardinality(array_agg(a.id)) from orders a, orders b, orders c
select array_length(array_agg(a), 1) from unnest(array[1]) a, unnest(array[2]) b
select json_objectagg(a : 1) from unnest(string_to_array(repeat('x,', 100), ',')) a
with recursive r as (select 1 n union all select n + 1 from r where n < 9) select string_agg(n::text, '') from r
with recursive r as (select 1 n union all select n + 1 from r where n < 9) select array(select n from r)
"""
HOSTILE_OF_ANY_LOGIN: Final = _split(_OF_ANY_LOGIN)
OVERSIZED: Final = _split(_OVERSIZED)
HOSTILE: Final = [
    statement
    for text in (_STACKED, _CHANGES, _DEFINITIONS, _SESSIONS, _PROGRAMS, _FUNCTIONS, _OF_ANY_LOGIN, _READS)
    for statement in _split(text)
]


def build_honest_statements() -> list[tuple[str, list[Any]]]:
    """Build statements that an analyst would write, from templates."""
    honest: list[tuple[str, list[Any]]] = []
    for table, column in product(("customers", "products", "orders", "employees", "public.paid_orders"), ("id", "1")):
        honest += [
            (f"select * from {table} order by {column}", []),
            (f"select count(*), min({column}), max({column}) from {table}", []),
            (f"select {column} from {table} where {column} between $1 and $2 limit 5", [1, 9]),
            (f"select distinct on (t.{column if column == 'id' else 'id'}) t.* from {table} as t", []),
        ]
    for aggregate in (
        "count(*)", "sum(amount * price)", "avg(price)", "max(placed)", "string_agg(p.name, ', ' order by p.name)",
        "array_agg(distinct p.id)", "json_agg(p.name)", "jsonb_object_agg(p.id, p.price)", "stddev(price)",
        "percentile_cont(0.5) within group (order by price)", "mode() within group (order by state)",
        "bool_or(note is null)",
        "count(*) filter (where state = 'paid')", "round(sum(price * amount), 2)", "corr(amount, price)",
    ):  # fmt: skip
        for group in ("c.city", "date_trunc('month', placed)", "o.state", "extract(isodow from placed)"):
            honest.append(
                (
                    f"select {group} as part, {aggregate} as value from orders o join customers c on c.id = o.customer "
                    "join order_lines l on l.order_id = o.id join products p on p.id = l.product "
                    f"group by {group} having count(*) > $1 order by 1",
                    [1],
                )
            )
    for window in (
        "row_number()", "rank()", "dense_rank()", "percent_rank()", "ntile(4)", "lag(placed)", "lead(id, 2)",
        "first_value(id)", "sum(id)", "count(*)", "avg(id)",
    ):  # fmt: skip
        for frame in ("", " rows between 2 preceding and current row"):
            if frame and window[:4] in ("row_", "rank", "dens", "perc", "ntil"):
                continue
            honest.append(
                (
                    f"select id, {window} over (partition by customer order by placed, id{frame}) from orders limit 20",
                    [],
                )
            )
    for expression in (
        "placed::date", "placed + interval '1 day'", "age(placed)", "to_char(placed, 'YYYY-MM')", "now() - placed",
        "extract(epoch from placed)", "placed at time zone 'Europe/Berlin'", "date_part('week', placed)",
        "make_interval(days => 3)", "current_date - placed::date", "date_bin('15 minutes', placed, '2026-01-01')",
        "upper(state::text)", "coalesce(note, '-')", "nullif(note, 'Note 5')", "concat_ws('/', id, note)",
        "substring(note from 1 for 4)", "position('o' in note)", "trim(both ' ' from note)", "note ilike 'note%'",
        "note similar to 'N(o|a)te%'", "regexp_replace(note, '\\d+', '#')", "note ~ '^Note'",
        "split_part(note, ' ', 2)",
        "lpad(id::text, 8, '0')", "md5(note)", "format('%s-%s', id, state)", "case state when 'paid' then 1 else 0 end",
        "case when id > 5 then 'a' when id > 2 then 'b' end", "greatest(id, customer)", "id % 7", "-id", "abs(id - 9)",
        "round(id / 3.0, 1)", "power(id, 2)", "width_bucket(id, 0, 200, 4)", "id in (1, 2, 3)",
        "id = any (array[1, 2])",
        "(id, customer) = (1, 2)", "o.customer", "o is null", "state is distinct from 'paid'", "note is not null",
        "row(id, state)", "array[id, customer]", "(array[id, customer])[1]", "to_jsonb(o)", "row_to_json(o)",
        "jsonb_build_object('id', id)", "json_object('id': id)", "gen_random_uuid()", "random() < 0.5",
        "starts_with(note, 'N')", "id::numeric(10, 2)", "cast(id as text)", "octet_length(note)",
        "encode('a'::bytea, 'hex')",
        "tstzrange(placed, placed + interval '1 h') @> placed", "placed::time",
        "(placed, placed) overlaps (now(), now())",
        "current_user", "current_timestamp", "quote_literal(note)", "id between symmetric 9 and 1", "id::float8 / 3",
        "grouping(id)",
    ):  # fmt: skip
        group = " group by id" if expression.startswith("grouping") else ""
        honest.append((f"select {expression} as value from orders o where customer < $1{group}", [9]))
    honest += [
        ("select id from orders where placed >= $1 and placed < $2", ["2026-03-02", "2026-03-04T00:00:00Z"]),
        ("select id from orders where state = $1", ["paid"]),
        ("select id from orders where state = any ($1)", [["paid", "sent"]]),
        ("select id from customers where tags @> $1 and 't1' = any (tags)", [["t1"]]),
        ("select name, profile ->> 'age' from customers where (profile ->> 'age')::int > $1", [30]),
        ("select name from customers where profile @> $1", [{"likes": ["tea"]}]),
        ("select name from customers where profile #>> '{likes,0}' = $1", ["tea"]),
        ("select name from customers where jsonb_path_exists(profile, '$.likes[*] ? (@ == \"tea\")')", []),
        ("select c.name, l.* from customers c, jsonb_array_elements_text(c.profile -> 'likes') with ordinality l", []),
        ("select key, value from customers, jsonb_each(profile) where id = $1", [1]),
        ("select * from jsonb_to_recordset($1) as x (a int, b text)", [[{"a": 1, "b": "x"}]]),
        ("select x.* from json_table('[{\"a\": 1}]'::jsonb, '$[*]' columns (a int path '$.a')) x", []),
        ("select json_exists(profile, '$.age ? (@ > $x)' passing 30 as x), json_scalar(1) from customers", []),
        ("select json_value(profile, '$.age' returning int default 0 on empty) from customers", []),
        ("select unnest(tags), count(*) from customers group by 1 order by 2 desc", []),
        ("select array_length(tags, 1), cardinality(tags), tags[1], tags[1:1] from customers", []),
        ("select name, ts_rank(words, q) from products, plainto_tsquery('english', $1) q where words @@ q", ["kettle"]),
        ("select name from products where words @@ websearch_to_tsquery('english', 'red -blue')", []),
        ("select ts_headline('english', name, to_tsquery('english', 'cup')) from products", []),
        ("select name from products where to_tsvector('english'::regconfig, name) @@ to_tsquery('tea')", []),
        ("with recursive t as (select id, name, 1 as depth from employees where boss is null union all "
         "select e.id, e.name, depth + 1 from employees e join t on e.boss = t.id) select * from t order by id", []),
        ("with recursive t (n) as (values (1) union select n + 1 from t where n < 9) select sum(n) from t", []),
        ("with recursive t as (select id, boss from employees where id = 4 union all select e.id, e.boss from "
         "employees e join t on e.id = t.boss) search depth first by id set place select * from t", []),
        ("with a as (select customer, count(*) n from orders group by 1), b as (select avg(n) m from a) "
         "select customer from a, b where n > m", []),
        ("with a as materialized (select * from orders), b as not materialized (table a) select count(*) from b", []),
        ("select d::date, count(o.id) from generate_series($1::date, '2026-03-10', interval '1 day') d "
         "left join orders o on o.placed::date = d group by 1 order by 1", ["2026-03-01"]),
        ("select c.name, x.id from customers c cross join lateral (select id from orders o where o.customer = c.id "
         "order by placed desc limit 2) x", []),
        ("select city, state, count(*) from customers c join orders o on o.customer = c.id group by rollup (1, 2)", []),
        ("select city, count(*) from customers group by grouping sets ((city), ())", []),
        ("select city, joined, count(*), grouping(city) from customers group by cube (city, joined)", []),
        ("select id from customers except select customer from orders", []),
        ("select id from customers intersect all select customer from orders", []),
        ("(select id from customers order by id limit 3) union all (select id from products order by id limit 3)", []),
        ("select * from customers c full join employees e using (id) where c.id is null", []),
        ("select * from customers natural join employees", []),
        ("select name from customers where exists (select from orders where customer = customers.id)", []),
        ("select name from customers where id not in (select customer from orders where note is null)", []),
        ("select name, (select count(*) from orders o where o.customer = c.id) as orders from customers c", []),
        ("select name from employees where salary > all (select salary from employees where boss is not null)", []),
        ("select sum(salary) over w, avg(salary) over w from employees window w as (partition by boss)", []),
        ("select * from customers tablesample bernoulli (50) repeatable (1)", []),
        ("select * from customers order by name collate \"C\" desc nulls last fetch first 3 rows only", []),
        ("select * from customers offset $1 limit $2", [2, 3]),
        ("values (1, 'a'), (2, 'b') order by 1", []),
        ("table employees", []),
        ("select repeat('=', 40), lpad(name, 30, '.'), format('%-20s', name), 'x'::char(10) from products", []),
        ("select sum(g) from generate_series($1, 1000) g", [1]),
        ("select customer, array_agg(id order by id), json_agg(json_build_object('id', id, 'state', state)) "
         "from orders group by 1", []),
        ("select name, array(select id from orders o where o.customer = c.id) from customers c", []),
        ("select string_agg(distinct tag, ',') from customers, unnest(tags) tag", []),
        ("select string_agg(g::text, ',') from generate_series(1, 100) g", []),
        ("explain (verbose) /* how */ (select id from orders union select id from customers order by 1) limit 3;", []),
        ("explain select * from orders where id = $1", [1]),
        ("explain (verbose, costs off, format json) select count(*) from orders", []),
        ("select 1;", []),
        ("select 1 -- the end", []),
        ("/* first */ select 'it''s; fine' as text, E'a\\nb', $$x;y$$ ;  ", []),
        ("select \"id\" as \"Order No.\" from \"public\".\"orders\" limit 1", []),
        ("select U&'d\\0061ta', b'101', x'ff', 1e3, .5, true, null", []),
        ("select o.id, c.name, p.name, l.amount, e.name from orders o join customers c on c.id = o.customer join "
         "order_lines l on l.order_id = o.id join products p on p.id = l.product left join employees e on e.id = c.id",
         []),
        ("select picture from products where id = $1", [1]),
        ("select $1::numeric + 0.1, $2::date, $3::bool, $4", ["1.10", "2026-01-02", True, "x"]),
    ]  # fmt: skip
    return honest
