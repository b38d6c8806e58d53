-- Servers whose tools are served here: what somebody agreed to of what they say, and what they say otherwise since. Only
-- additions, so that the release before goes on serving.

-- One row for each thing a server says that counts: `tool:NAME` as the server spells it, or `instructions`.
create table deputize.server_pins (
    tenant      text not null references deputize.tenants,
    server      text not null,
    item        text not null check (item = 'instructions' or item like 'tool:_%'),
    digest      text not null,
    -- What was agreed to, so that a change can be shown beside it.
    definition  bytea not null,
    -- What it is registered as; instructions are not.
    tool        text,
    version     text,
    accepted_by text not null,
    accepted_at timestamptz not null default now(),
    primary key (tenant, server, item),
    check ((item = 'instructions') = (tool is null) and (tool is null) = (version is null))
);

-- What a server said otherwise, once per item and content. Of what it does not offer any more, the content is nothing.
create table deputize.server_changes (
    tenant     text not null references deputize.tenants,
    server     text not null,
    item       text not null check (item = 'instructions' or item like 'tool:_%'),
    digest     text not null,
    definition bytea,
    kind       text not null check (kind in ('changed', 'added', 'removed', 'flagged')),
    -- What is odd about it, as JSON.
    flags      bytea not null,
    seen_at    timestamptz not null default now(),
    state      text not null default 'open' check (state in ('open', 'accepted', 'rejected', 'gone')),
    decided_by text,
    decided_at timestamptz,
    reason     text,
    primary key (tenant, server, item, digest),
    check (kind <> 'removed' or definition is null),
    check ((state in ('accepted', 'rejected')) = (decided_by is not null))
);
create index server_changes_open on deputize.server_changes (tenant, server) where state = 'open';

do $$
declare name text;
begin
    foreach name in array array['server_pins', 'server_changes'] loop
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
grant delete on deputize.server_pins to deputize_writer;
