-- What time does to calls that wait for people, and how people are told of it.

-- How often people are reminded is a setting of the gateways, so the first look comes soon, and finds out when the next
-- one is due.
create function deputize.look_soon() returns trigger language plpgsql as $$
begin
    new.next_at := least(new.next_at, now() + interval '1 minute');
    return new;
end $$;
create trigger approvals_opened before insert on deputize.approvals for each row execute function deputize.look_soon();

-- Tickets something is due of, locked, skipping what another sweeper or somebody who decides holds. Only tickets are locked
-- here: whoever ends a call locks the call first, and its ticket after it.
create function deputize.due_approvals(most integer) returns table (
    tenant text, id uuid, call_id uuid, tool text, level integer, levels float8[], demands bytea, expires_at timestamptz,
    over boolean, rises_to integer, age float8, owner_epoch integer, trace text, session text
) language sql
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
    with due as materialized (
        select a.tenant, a.id, a.call_id, a.tool, a.level, a.levels, a.demands, a.opened_at, a.expires_at
        from deputize.approvals a
        where a.next_at <= now() order by a.next_at limit most for update skip locked
    )
    select d.tenant, d.id, d.call_id, d.tool, d.level, d.levels, case when r.rises_to > d.level then d.demands end,
        d.expires_at, d.expires_at <= now(), r.rises_to, extract(epoch from now() - d.opened_at)::float8,
        k.owner_epoch, k.trace, k.session
    from due d
    cross join lateral (select count(*)::integer as rises_to from unnest(d.levels) as s
        where d.opened_at + make_interval(secs => s) <= now()) as r
    left join deputize.calls k on k.tenant = d.tenant and k.id = d.call_id and d.expires_at <= now()
$$;

-- What was due of these open tickets, which the caller has locked: those that rose to a level ask its groups too, those
-- that have waited long enough are brought to mind again, and each gets its next moment. What is over is put off while
-- the caller ends it: if that one dies, another comes then.
create function deputize.move_approvals(
    m_tenant text[], m_id uuid[], m_level integer[], g_tenant text[], g_id uuid[], g_grp text[],
    p_remind float8, p_most integer, p_pause float8
) returns void language sql
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
    with due as (
        select a.tenant, a.id, m.level, a.expires_at <= now() as over, a.reminded as before,
            greatest(a.reminded, least(p_most,
                coalesce(floor(extract(epoch from now() - a.opened_at) / nullif(p_remind, 0)), 0)))::integer as reminded
        from unnest(m_tenant, m_id, m_level) as m(tenant, id, level)
        join deputize.approvals a on a.tenant = m.tenant and a.id = m.id
        where a.state = 'open'
    ), risen as (
        insert into deputize.approval_groups (tenant, grp, id)
        select g.tenant, g.grp, g.id from unnest(g_tenant, g_id, g_grp) as g(tenant, id, grp)
        on conflict do nothing returning tenant, grp, id
    ), told as (
        insert into deputize.notices (tenant, ticket, grp, kind) select tenant, id, grp, 'escalated' from risen
    ), reminded as (
        -- Of the groups that were asked before; who is asked just now needs no reminder.
        insert into deputize.notices (tenant, ticket, grp, kind)
        select g.tenant, g.id, g.grp, 'reminder'
        from due join deputize.approval_groups g on g.tenant = due.tenant and g.id = due.id
        where due.reminded > due.before and not due.over
    )
    update deputize.approvals a
    set level = due.level, reminded = due.reminded,
        next_at = case when due.over then now() + make_interval(secs => p_pause) else least(
            a.expires_at,
            a.opened_at + make_interval(secs => a.levels[due.level + 1]),
            case when due.reminded < p_most then
                a.opened_at + make_interval(secs => (due.reminded + 1) * nullif(p_remind, 0)) end) end
    from due where a.tenant = due.tenant and a.id = due.id
$$;

-- How many letters a group was sent of late: past a few, what more there is waits for the end of its window, and goes
-- into one digest.
create table deputize.mailboxes (
    tenant      text not null,
    grp         text not null,
    window_ends timestamptz not null default now(),
    told        integer not null default 0,
    primary key (tenant, grp)
);

-- One message to one receiver of a group, until it was heard or given up. Without a ticket it is a digest of everything
-- that waits for the group by then.
create table deputize.letters (
    tenant     text not null,
    id         uuid not null default gen_random_uuid(),
    grp        text not null,
    -- A keyed digest: addresses of receivers are secrets, and stay in the settings.
    receiver   bytea not null,
    ticket     uuid,
    kind       text not null check (kind in ('asked', 'escalated', 'reminder', 'broken-glass', 'digest')),
    tries      integer not null default 0,
    due_at     timestamptz not null default now(),
    problem    text,
    created_at timestamptz not null default now(),
    primary key (tenant, id),
    check ((kind = 'digest') = (ticket is null))
);
create index letters_due on deputize.letters (due_at);

do $$
declare name text;
begin
    foreach name in array array['mailboxes', 'letters'] loop
        execute format('alter table deputize.%I enable row level security', name);
        execute format('alter table deputize.%I force row level security', name);
        execute format('create policy one_tenant on deputize.%I for select to deputize_reader
                        using (tenant = current_setting(''deputize.tenant'', true))', name);
        execute format('create policy every_tenant on deputize.%I to deputize_writer using (true) with check (true)', name);
        execute format('create policy owner_maintains on deputize.%I to deputize_owner using (true) with check (true)', name);
        execute format('grant select on deputize.%I to deputize_reader', name);
        execute format('grant select, insert, update, delete on deputize.%I to deputize_writer', name);
    end loop;
end $$;

-- The notices that wait for one group become letters to its receivers, in one commit: one each while they are few, else a
-- digest, and no more before the window ends. Who broke glass is told of by itself at once. Nothing is done where another
-- process is at it.
create function deputize.write_letters(
    p_tenant text, p_grp text, p_receivers bytea[], p_most integer, p_window float8
) returns integer language plpgsql as $$
declare
    box deputize.mailboxes;
    waiting integer;
    written integer;
begin
    insert into deputize.mailboxes (tenant, grp) values (p_tenant, p_grp) on conflict do nothing;
    select * into box from deputize.mailboxes m where m.tenant = p_tenant and m.grp = p_grp for update skip locked;
    if not found then
        return 0;
    end if;
    if box.window_ends <= now() then
        box.told := 0;
        box.window_ends := now() + make_interval(secs => p_window);
    end if;
    with loud as (
        delete from deputize.notices n
        where n.tenant = p_tenant and n.grp = p_grp and n.due_at <= now() and n.kind = 'broken-glass' returning n.ticket, n.kind
    )
    insert into deputize.letters (tenant, grp, receiver, ticket, kind)
        select p_tenant, p_grp, r, loud.ticket, loud.kind from loud cross join unnest(p_receivers) as r;
    get diagnostics written = row_count;
    select count(*) into waiting from (
        select from deputize.notices n where n.tenant = p_tenant and n.grp = p_grp and n.due_at <= now() limit p_most + 1) as few;
    if waiting = 0 or box.told > p_most then
        return written;
    elsif box.told + waiting <= p_most then
        -- About one ticket, only the newest.
        with taken as (
            delete from deputize.notices n
            where n.tenant = p_tenant and n.grp = p_grp and n.due_at <= now() returning n.ticket, n.kind, n.created_at
        ), newest as (
            select distinct on (ticket) ticket, kind from taken order by ticket, created_at desc
        )
        insert into deputize.letters (tenant, grp, receiver, ticket, kind)
            select p_tenant, p_grp, r, newest.ticket, newest.kind from newest cross join unnest(p_receivers) as r;
    else
        delete from deputize.notices n where n.tenant = p_tenant and n.grp = p_grp and n.due_at <= now();
        insert into deputize.letters (tenant, grp, receiver, kind) select p_tenant, p_grp, r, 'digest' from unnest(p_receivers) as r;
        waiting := p_most + 1;
    end if;
    update deputize.mailboxes m set window_ends = box.window_ends, told = least(box.told + waiting, p_most + 1)
        where m.tenant = p_tenant and m.grp = p_grp;
    return written + waiting;
end $$;

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
