-- People's accounts at servers that want a sign-in. Whatever lets anybody in is sealed with the tenant's key. Only
-- additions, so that the release before goes on serving.

-- One link for each person and server: tokens that are made for that server, and for nobody but that person's calls.
create table deputize.server_links (
    tenant       text not null references deputize.tenants,
    server       text not null,
    user_name    text not null,
    sealed       bytea not null,
    -- What was asked for when it was made, and what the server wants beside that since.
    asked        text[] not null,
    wanted       text[] not null default '{}',
    -- When the token ends; null where nobody said.
    expires_at   timestamptz,
    linked_at    timestamptz not null default now(),
    renewed_at   timestamptz not null default now(),
    -- Why it is of no use any more, until the person links again.
    broken       text,
    primary key (tenant, server, user_name)
);

-- A sign-in that somebody began and did not end yet: one for each person and server, ended at most once.
create table deputize.server_sign_ins (
    tenant       text not null references deputize.tenants,
    server       text not null,
    user_name    text not null,
    -- Of what whoever comes back must bring.
    state_digest bytea not null,
    sealed       bytea not null,
    begun_at     timestamptz not null default now(),
    primary key (tenant, server, user_name)
);

-- Who this gateway is at a server's authorization server, where it registered itself.
create table deputize.server_clients (
    tenant       text not null references deputize.tenants,
    server       text not null,
    issuer       text not null,
    sealed       bytea not null,
    registered_at timestamptz not null default now(),
    primary key (tenant, server, issuer)
);

do $$
declare name text;
begin
    foreach name in array array['server_links', 'server_sign_ins', 'server_clients'] loop
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
