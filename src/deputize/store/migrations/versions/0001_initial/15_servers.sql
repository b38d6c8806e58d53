-- MCP servers: which of their definitions are pinned, which changes wait for review, and people's accounts there.

create table deputize.server_pins (
    tenant      text not null references deputize.tenants,
    server      text not null,
    -- `instructions`, or a kind and the name as the server spells it.
    item        text not null check (item = 'instructions' or item ~ '^(tool|resource|template|prompt|method):.'),
    digest      text not null,
    -- The definition that was accepted, so that a change can be shown beside it.
    definition  bytea not null,
    -- What it is registered as. Only tools and methods are.
    tool        text,
    version     text,
    accepted_by text not null,
    accepted_at timestamptz not null default now(),
    primary key (tenant, server, item),
    constraint server_pins_registered
        check ((item like 'tool:%' or item like 'method:%') = (tool is not null) and (tool is null) = (version is null))
);
comment on table deputize.server_pins is 'The definitions of a server''s items that someone accepted.';
select deputize.secure_table('server_pins', 'select, insert, update, delete');

create table deputize.server_changes (
    tenant     text not null references deputize.tenants,
    server     text not null,
    item       text not null check (item = 'instructions' or item ~ '^(tool|resource|template|prompt|method):.'),
    digest     text not null,
    -- Null for an item the server does not offer any more.
    definition bytea,
    kind       text not null check (kind in ('changed', 'added', 'removed', 'flagged')),
    -- What is suspicious about it, as JSON.
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
comment on table deputize.server_changes is 'What a server declared that differs from its pins, once per item and content.';
select deputize.secure_table('server_changes', 'select, insert, update');

create table deputize.server_links (
    tenant       text not null references deputize.tenants,
    server       text not null,
    user_name    text not null,
    sealed       bytea not null,
    -- The scopes that were requested when it was linked, and those the server demanded beside them since.
    requested_scopes text[] not null,
    missing_scopes text[] not null default '{}',
    -- When the token expires; null where the server did not say.
    expires_at   timestamptz,
    linked_at    timestamptz not null default now(),
    renewed_at   timestamptz not null default now(),
    -- Why it cannot be used any more, until the person links again.
    broken_reason text,
    primary key (tenant, server, user_name)
);
comment on table deputize.server_links is
    'Linked accounts: one for each person and server, with tokens for that server and that person''s calls only, sealed.';
select deputize.secure_table('server_links', 'select, insert, update, delete');

create table deputize.server_sign_ins (
    tenant       text not null references deputize.tenants,
    server       text not null,
    user_name    text not null,
    -- The digest of the OAuth state that has to come back.
    state_digest bytea not null,
    sealed       bytea not null,
    begun_at     timestamptz not null default now(),
    primary key (tenant, server, user_name)
);
comment on table deputize.server_sign_ins is
    'Account links that were begun and not finished: one for each person and server, finished at most once.';
select deputize.secure_table('server_sign_ins', 'select, insert, update, delete');

create table deputize.server_clients (
    tenant       text not null references deputize.tenants,
    server       text not null,
    issuer       text not null,
    sealed       bytea not null,
    registered_at timestamptz not null default now(),
    primary key (tenant, server, issuer)
);
comment on table deputize.server_clients is
    'OAuth clients of this gateway at the authorization servers of MCP servers where it registered itself, sealed.';
select deputize.secure_table('server_clients', 'select, insert, update, delete');
