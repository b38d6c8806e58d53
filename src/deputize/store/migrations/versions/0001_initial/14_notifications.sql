-- Notifications to approvers.

create table deputize.notification_windows (
    tenant      text not null,
    grp         text not null,
    window_ends timestamptz not null default now(),
    sent_count  integer not null default 0,
    primary key (tenant, grp)
);
comment on table deputize.notification_windows is
    'How many notifications a group got of late. Past a few, the rest waits for the end of the window and becomes a digest.';
select deputize.secure_table('notification_windows', 'select, insert, update, delete');

create table deputize.notifications (
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
create index notifications_due on deputize.notifications (due_at);
comment on table deputize.notifications is
    'Messages to receivers of groups, until they are sent or given up. A digest tells of everything that waits for the group '
    'when it is sent.';
select deputize.secure_table('notifications', 'select, insert, update, delete');

create function deputize.write_notifications(
    p_tenant text, p_group text, p_receivers bytea[], p_max_per_window integer, p_window_seconds float8
) returns integer language plpgsql as $$
declare
    current_window deputize.notification_windows;
    waiting integer;
    written integer;
begin
    insert into deputize.notification_windows (tenant, grp) values (p_tenant, p_group) on conflict do nothing;
    select * into current_window from deputize.notification_windows w
        where w.tenant = p_tenant and w.grp = p_group for update skip locked;
    if not found then
        -- Another process composes for this group.
        return 0;
    end if;
    if current_window.window_ends <= now() then
        current_window.sent_count := 0;
        current_window.window_ends := now() + make_interval(secs => p_window_seconds);
    end if;
    -- A broken glass is told of by itself and at once.
    with urgent as (
        delete from deputize.notices n
        where n.tenant = p_tenant and n.grp = p_group and n.due_at <= now() and n.kind = 'broken-glass'
        returning n.ticket, n.kind
    )
    insert into deputize.notifications (tenant, grp, receiver, ticket, kind)
        select p_tenant, p_group, r, urgent.ticket, urgent.kind from urgent cross join unnest(p_receivers) as r;
    get diagnostics written = row_count;
    select count(*) into waiting from (
        select from deputize.notices n where n.tenant = p_tenant and n.grp = p_group and n.due_at <= now()
        limit p_max_per_window + 1) as few;
    if waiting = 0 or current_window.sent_count > p_max_per_window then
        return written;
    elsif current_window.sent_count + waiting <= p_max_per_window then
        -- Only the newest notice about each ticket.
        with deleted_notices as (
            delete from deputize.notices n
            where n.tenant = p_tenant and n.grp = p_group and n.due_at <= now()
            returning n.ticket, n.kind, n.created_at
        ), newest as (
            select distinct on (ticket) ticket, kind from deleted_notices order by ticket, created_at desc
        )
        insert into deputize.notifications (tenant, grp, receiver, ticket, kind)
            select p_tenant, p_group, r, newest.ticket, newest.kind from newest cross join unnest(p_receivers) as r;
    else
        delete from deputize.notices n where n.tenant = p_tenant and n.grp = p_group and n.due_at <= now();
        insert into deputize.notifications (tenant, grp, receiver, kind)
            select p_tenant, p_group, r, 'digest' from unnest(p_receivers) as r;
        waiting := p_max_per_window + 1;
    end if;
    update deputize.notification_windows w
        set window_ends = current_window.window_ends,
            sent_count = least(current_window.sent_count + waiting, p_max_per_window + 1)
        where w.tenant = p_tenant and w.grp = p_group;
    return written + waiting;
end $$;
comment on function deputize.write_notifications is
    'Make notifications of a group''s due notices: one for each receiver and notice while they are few, otherwise one digest, '
    'and no more before the window ends.';
