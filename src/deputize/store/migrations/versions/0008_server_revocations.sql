create table deputize.server_revocations (
    tenant     text not null references deputize.tenants,
    id         uuid not null,
    server     text not null,
    sealed     bytea not null,
    attempts   integer not null default 0,
    due_at     timestamptz not null default now(),
    created_at timestamptz not null default now(),
    primary key (tenant, id)
);
create index server_revocations_due on deputize.server_revocations (due_at);
comment on table deputize.server_revocations is
    'Tokens of links that are deleted, sealed, until they are revoked at their authorization server or that is given up. '
    'They name no person.';
select deputize.secure_table('server_revocations', 'select, insert, update, delete');
