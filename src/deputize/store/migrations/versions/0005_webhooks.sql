-- What callers see of a run: progress, its end told to whoever asked to be told, and calls that go on as runs.

-- A part of the result is kept; progress without one is worth nothing once there is newer.
alter table deputize.progress add column partial boolean not null default false;

-- Somebody wants to hear of this call's end.
alter table deputize.calls add column callback boolean not null default false;

-- Where to tell it and with which key, sealed: an address may hold a secret.
create table deputize.callbacks (
    tenant text not null,
    id     uuid not null,
    asked  bytea not null,
    primary key (tenant, id)
);

-- One row for each end a call came to, until it was told or given up. An unknown outcome is one, its settlement another.
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
create index deliveries_due on deputize.deliveries (due_at) where due_at is not null;
create index deliveries_dead on deputize.deliveries (tenant, dead_at) where dead_at is not null;

do $$
declare name text;
begin
    foreach name in array array['callbacks', 'deliveries'] loop
        execute format('alter table deputize.%I enable row level security', name);
        execute format('alter table deputize.%I force row level security', name);
        execute format('create policy one_tenant on deputize.%I for select to deputize_reader
                        using (tenant = current_setting(''deputize.tenant'', true))', name);
        execute format('create policy every_tenant on deputize.%I to deputize_writer using (true) with check (true)', name);
        execute format('create policy owner_maintains on deputize.%I to deputize_owner using (true) with check (true)', name);
        execute format('grant select on deputize.%I to deputize_reader', name);
        execute format('grant select, insert, delete on deputize.%I to deputize_writer', name);
    end loop;
end $$;
grant update on deputize.deliveries to deputize_writer;

-- A trigger, because a call may end in a batch, in the sweeper, or by a cancellation: whichever commit ends it commits
-- the delivery too. Every other call pays for one comparison.
create function deputize.tell_of_end() returns trigger language plpgsql as $$
begin
    insert into deputize.deliveries (tenant, call_id, state, due_at) values (new.tenant, new.id, new.state, now());
    return null;
end $$;
create trigger calls_told after update of state on deputize.calls for each row
    when (new.callback and new.ended_at is not null and new.state <> old.state)
    execute function deputize.tell_of_end();

-- A call that was begun goes on as a run: its request's time was over, or its outcome is unknown and its upstream takes a
-- repeated key once. Compare-and-set.
create function deputize.continue_run(
    p_boot uuid, p_tenant text, p_id uuid, p_epoch integer,
    r_input bytea, r_caller bytea, r_not_after timestamptz, r_priority integer, r_release text
) returns setof deputize.commit_answer language plpgsql as $$
begin
    perform deputize.hold_barrier(array[p_tenant]);
    update deputize.calls k
    set state = 'queued', ended_at = null, error = null, cancel_asked = null
    where k.tenant = p_tenant and k.id = p_id and k.owner_epoch = p_epoch
      and (k.state = 'unknown' or k.state = 'running' and k.owner = p_boot and k.cancel_asked is null);
    if found then
        insert into deputize.runs as r (tenant, id, priority, caller, not_after, release)
            values (p_tenant, p_id, r_priority, r_caller, r_not_after, r_release)
            on conflict (tenant, id) do update set priority = excluded.priority, caller = excluded.caller,
                not_after = excluded.not_after, release = excluded.release, queued_at = now();
        insert into deputize.sealed (tenant, id, kind, box) values (p_tenant, p_id, 'input', r_input)
            on conflict (tenant, id, kind) do update set box = excluded.box;
        perform deputize.enqueue_run(p_tenant, p_id, r_priority);
        return query select 'held', p_tenant, p_id, p_id, null::bigint, null::bigint, null::bigint;
    end if;
    return query select * from deputize.epochs_of(array[p_tenant]);
end $$;

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
