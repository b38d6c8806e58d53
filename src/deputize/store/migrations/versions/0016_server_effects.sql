create table deputize.server_effects (
    tenant       text not null references deputize.tenants,
    server       text not null,
    -- The tool, as in `server_pins`: `tool:` and the name as the server spells it.
    item         text not null check (item like 'tool:_%'),
    -- The definition that was confirmed; another one has the strict reading.
    digest       text not null,
    effects      text not null check (effects in ('read', 'write', 'destructive')),
    confirmed_at timestamptz not null default now(),
    primary key (tenant, server, item)
);
comment on table deputize.server_effects is
    'What the tools of a server do, as an operator confirmed it for exactly one definition of each.';
select deputize.secure_table('server_effects', 'select, insert, update, delete');
