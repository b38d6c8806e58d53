-- What people are asked, and unknown outcomes as work: looked into until they are settled, by whom or what ever.

create table deputize.tickets (
    tenant      text not null,
    id          uuid not null,
    kind        text not null check (kind in ('reconcile', 'approval')),
    call_id     uuid not null,
    state       text not null default 'open' check (state in ('open', 'resolved', 'expired')),
    -- What whoever decides has to know: redacted facts, as JSON.
    question    bytea not null,
    due_at      timestamptz,
    opened_at   timestamptz not null default now(),
    resolved_at timestamptz,
    resolved_by text,
    resolution  text,
    reason      text,
    primary key (tenant, id),
    check ((state = 'open') = (resolved_at is null))
);
-- Nobody is asked twice at once about what became of a call.
create unique index tickets_about on deputize.tickets (tenant, call_id, kind) where state = 'open';
create index tickets_open on deputize.tickets (tenant, id) where state = 'open';

-- One row for each call whose outcome is unknown: how often it was looked into, and when to look again.
create table deputize.reconciliations (
    tenant text not null,
    id     uuid not null,
    tries  integer not null default 0,
    due_at timestamptz not null,
    -- Rises when the same call becomes unknown again: whoever found it settled must not forget that.
    again  integer not null default 0,
    primary key (tenant, id)
);
create index reconciliations_due on deputize.reconciliations (due_at);

do $$
declare name text;
begin
    foreach name in array array['tickets', 'reconciliations'] loop
        execute format('alter table deputize.%I enable row level security', name);
        execute format('alter table deputize.%I force row level security', name);
        execute format('create policy one_tenant on deputize.%I for select to deputize_reader
                        using (tenant = current_setting(''deputize.tenant'', true))', name);
        execute format('create policy every_tenant on deputize.%I to deputize_writer using (true) with check (true)', name);
        execute format('create policy owner_maintains on deputize.%I to deputize_owner using (true) with check (true)', name);
        execute format('grant select on deputize.%I to deputize_reader', name);
        execute format('grant select, insert, update on deputize.%I to deputize_writer', name);
    end loop;
end $$;
grant delete on deputize.reconciliations to deputize_writer;

-- Whichever commit makes a call's outcome unknown commits the work of finding out too. Nothing is asked before the call's
-- own time is over: until then its tool may still act. Every other call pays for one comparison.
create function deputize.look_into() returns trigger language plpgsql as $$
begin
    insert into deputize.reconciliations as c (tenant, id, due_at)
    values (new.tenant, new.id, greatest(now(), new.deadline_at))
    on conflict (tenant, id) do update set again = c.again + 1, due_at = greatest(c.due_at, excluded.due_at);
    return null;
end $$;
create trigger calls_unknown after update of state on deputize.calls for each row
    when (new.state = 'unknown' and old.state <> 'unknown')
    execute function deputize.look_into();

-- An unknown outcome becomes known. Compare-and-set: a call that somebody took over or settled meanwhile is left alone.
create function deputize.settle_unknown(
    p_tenant text, p_id uuid, p_epoch integer, p_state text, p_error text, p_release boolean, p_box bytea,
    p_entry_id uuid, p_entry bytea, p_salt bytea
) returns boolean language plpgsql as $$
declare
    none_t text[] := '{}'; none_u uuid[] := '{}'; none_b bytea[] := '{}'; none_i integer[] := '{}';
begin
    -- In the order of every commit: first the barrier, then the row.
    perform deputize.hold_barrier(array[p_tenant]);
    perform from deputize.calls k
        where k.tenant = p_tenant and k.id = p_id and k.owner_epoch = p_epoch and k.state = 'unknown' for update;
    if not found then
        return false;
    end if;
    perform deputize.commit_calls(
        array[p_tenant], p_entry_id, none_t, none_u, none_t, none_t, none_t, none_t, none_t, none_t, none_t, none_b, none_b,
        none_b, '{}'::float8[], none_i, none_t, none_u, none_b, none_b, array[p_tenant], array[p_id], array[p_epoch],
        array[p_state], array[p_error], array[p_release], array[p_box], array[p_entry_id], array[p_entry], array[p_salt],
        none_t, none_u, none_u, none_b, none_b);
    delete from deputize.reconciliations where tenant = p_tenant and id = p_id;
    return true;
end $$;

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
