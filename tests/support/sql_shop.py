"""A shop's database with logins that own, read and change rows, for the tools `sql.*`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Final

from deputize.store.local_postgres import LocalPostgres

_numbers = count(1)
# Tests log in hundreds of times.
_ROLES = """
set scram_iterations = 1;
do $$ begin
  create role shop_owner login password 'owner';
  create role shop_reader login password 'reader';
  create role shop_writer login password 'writer';
exception when duplicate_object then null; end $$
"""
_TABLES = """
create type order_state as enum ('open', 'paid', 'sent');
create table customers (
  id integer primary key, name text not null, email text unique, city text, joined date not null,
  tags text[] not null default '{}', profile jsonb not null default '{}'
);
comment on table customers is 'People who bought something.';
create table products (
  id integer primary key, name text not null, price numeric(10, 2) not null, picture bytea,
  words tsvector generated always as (to_tsvector('english', name)) stored
);
create table orders (
  id bigint primary key, customer integer not null references customers, state order_state not null default 'open',
  placed timestamptz not null, note text
);
create table order_lines (
  order_id bigint not null references orders, product integer not null references products, amount integer not null,
  primary key (order_id, product)
);
create table employees (id integer primary key, name text not null, boss integer references employees, salary numeric);
create view paid_orders as select id, customer, placed from orders where state = 'paid';
create sequence numbers;
create function vat(price numeric) returns numeric language sql immutable as 'select price * 0.2';
create function ship(id bigint) returns void language sql volatile as
  'update orders set state = ''sent'' where id = $1';
create function label(customers) returns text language sql stable as 'select $1.name || '' <'' || $1.email || ''>''';
create schema private;
create table private.salaries (id integer primary key, amount numeric);
insert into customers select n, 'Customer ' || n, 'c' || n || '@example.com', (array['Ulm', 'Bern', 'Graz'])[1 + n % 3],
  date '2026-01-01' + n, array['t' || n % 2], jsonb_build_object('age', 20 + n, 'likes', jsonb_build_array('tea'))
  from generate_series(1, 60) n;
insert into products
  select n, (array['Red kettle', 'Blue cup', 'Green tea'])[1 + n % 3] || ' ' || n, n * 1.25, '\\x00ff'
  from generate_series(1, 20) n;
insert into orders select n, 1 + n % 60, (array['open', 'paid', 'sent'])[1 + n % 3]::order_state,
  timestamptz '2026-03-01 08:00:00+00' + n * interval '7 hours', case when n % 5 = 0 then 'Note ' || n end
  from generate_series(1, 200) n;
insert into order_lines select n, 1 + (n * 7 + k) % 20, k from generate_series(1, 200) n, generate_series(1, 3) k;
insert into employees values (1, 'Ada', null, 9000.50), (2, 'Bo', 1, 5000), (3, 'Cy', 1, 5100), (4, 'Di', 2, 4000);
insert into private.salaries values (1, 9000);
select lo_from_bytea(4711, 'kept');
analyze;
"""
_GRANTS = """
revoke all on database {name} from public;
grant connect on database {name} to shop_owner, shop_reader, shop_writer;
revoke create on schema public from public;
grant usage on schema public to shop_reader, shop_writer;
grant select on all tables in schema public to shop_reader;
grant select, insert, update, delete on customers, products, orders, order_lines, employees to shop_writer;
"""

# What changes for others, in one row. Settings of the cluster, roles and databases count, and so do large objects.
STATE: Final = """
select md5(concat_ws('|',
  (select string_agg(x::text, '' order by x::text) from (select relname, relkind, relowner, relacl, relrowsecurity,
    reltriggers, relnatts from (select c.*, relhastriggers as reltriggers from pg_class c
    where relnamespace not in ('pg_toast'::regnamespace)) c) x),
  (select string_agg(x::text, '' order by x::text) from (select proname, prosrc, prosecdef, proacl from pg_proc
    where oid > 16383) x),
  (select string_agg(x::text, '' order by x::text) from (select nspname, nspowner, nspacl from pg_namespace) x),
  (select string_agg(x::text, '' order by x::text) from pg_authid x),
  (select string_agg(x::text, '' order by x::text) from pg_auth_members x),
  (select string_agg(x::text, '' order by x::text) from pg_db_role_setting x),
  (select string_agg(x::text, '' order by x::text) from pg_default_acl x),
  (select string_agg(x::text, '' order by x::text) from (select datname, datdba, datacl from pg_database) x),
  (select string_agg(x::text, '' order by x::text) from (select typname, typowner from pg_type where oid > 16383) x),
  (select string_agg(x::text, '' order by x::text) from pg_description x where objoid > 16383),
  (select string_agg(x::text, '' order by x::text) from pg_largeobject x),
  (select string_agg(x::text, '' order by x::text) from pg_largeobject_metadata x),
  (select string_agg(x::text, '' order by x::text) from (select name, setting from pg_file_settings) x),
  (select count(*) from pg_replication_slots), (select count(*) from pg_prepared_xacts),
  (select count(*) from pg_locks where locktype = 'advisory'), (select count(*) from pg_publication),
  (select count(*) from pg_extension), (select count(*) from pg_policy), (select count(*) from pg_event_trigger),
  (select last_value::text || is_called from numbers),
  (select string_agg(x::text, '' order by x::text) from customers x),
  (select string_agg(x::text, '' order by x::text) from products x),
  (select string_agg(x::text, '' order by x::text) from orders x),
  (select string_agg(x::text, '' order by x::text) from order_lines x),
  (select string_agg(x::text, '' order by x::text) from employees x),
  (select string_agg(x::text, '' order by x::text) from private.salaries x)
))
"""


@dataclass(frozen=True, kw_only=True)
class SqlShop:
    """Addresses of the database, by login; that of `administrator` is a superuser."""

    name: str
    administrator: str
    owner: str
    reader: str
    writer: str


@contextmanager
def make_sql_shop(postgres: LocalPostgres) -> Iterator[SqlShop]:
    """Make the database, and drop it at the end."""
    name = f"sql_shop_{next(_numbers)}"
    postgres.run_sql(_ROLES, database="postgres")
    postgres.run_sql(f"create database {name} owner shop_owner", database="postgres")
    postgres.run_sql(f"alter schema public owner to shop_owner; set role shop_owner; {_TABLES}", database=name)
    postgres.run_sql(_GRANTS.format(name=name), database=name)
    address = postgres.dsn_for(name).partition("@")[2]
    yield SqlShop(
        name=name,
        administrator=postgres.dsn_for(name),
        owner=f"postgresql://shop_owner:owner@{address}",
        reader=f"postgresql://shop_reader:reader@{address}",
        writer=f"postgresql://shop_writer:writer@{address}",
    )
    postgres.run_sql(f"drop database {name} with (force)", database="postgres")
