-- Callbacks: the end of a call, delivered to anyone who asked for it.

create table deputize.callbacks (
    tenant  text not null,
    id      uuid not null,
    request bytea not null,
    primary key (tenant, id)
);
comment on table deputize.callbacks is
    'Where to deliver the end of a call and with which key. Sealed, because an address may hold a secret.';
select deputize.secure_table('callbacks', 'select, insert, delete');

create table deputize.deliveries (
    tenant       text not null,
    id           uuid not null default gen_random_uuid(),
    call_id      uuid not null,
    state        text not null,
    attempts     integer not null default 0,
    due_at       timestamptz,
    delivered_at timestamptz,
    dead_at      timestamptz,
    problem      text,
    created_at   timestamptz not null default now(),
    primary key (tenant, id)
);
create index deliveries_dead on deputize.deliveries (tenant, dead_at) where dead_at is not null;
-- Taken tenant by tenant: one whose receivers are slow must not hold up those of another.
create index deliveries_in_turn on deputize.deliveries (tenant, due_at) where due_at is not null;
create index deliveries_over on deputize.deliveries (coalesce(delivered_at, dead_at))
    where delivered_at is not null or dead_at is not null;
create index deliveries_of_call on deputize.deliveries (tenant, call_id);
comment on table deputize.deliveries is
    'One row for each end a call came to, until it is delivered or given up. An unknown outcome is one end, its settlement '
    'another.';
select deputize.secure_table('deliveries', 'select, insert, update, delete');

-- A trigger, because a call may end in a batch, in the sweeper or by a cancellation: the commit that ends it commits the
-- delivery too. Any other call costs one comparison.
create function deputize.schedule_delivery() returns trigger language plpgsql as $$
begin
    insert into deputize.deliveries (tenant, call_id, state, due_at) values (new.tenant, new.id, new.state, now());
    return null;
end $$;
comment on function deputize.schedule_delivery is 'Trigger: schedule the callback of a call that ended.';
create trigger calls_schedule_delivery after update of state on deputize.calls for each row
    when (new.has_callback and new.ended_at is not null and new.state <> old.state)
    execute function deputize.schedule_delivery();
