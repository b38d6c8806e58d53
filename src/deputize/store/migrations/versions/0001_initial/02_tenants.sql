-- Tenants, their epochs, their keys, and the salts behind pseudonyms. The tenant leads every key of the schema.

create table deputize.tenants (
    tenant     text primary key check (tenant ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    created_at timestamptz not null default now()
);
comment on table deputize.tenants is 'Every tenant there is.';
select deputize.secure_table('tenants', 'select, insert');

create table deputize.epochs (
    tenant     text primary key references deputize.tenants,
    registry   bigint not null default 0,
    policy     bigint not null default 0,
    revocation bigint not null default 0
);
comment on table deputize.epochs is
    'How often each kind of authority of a tenant changed. Written under the tenant''s exclusive barrier lock, read under '
    'the shared one by every batch.';
select deputize.secure_table('epochs', 'select, insert, update');

create table deputize.tenant_keys (
    tenant     text not null references deputize.tenants,
    version    integer not null,
    wrapped    bytea not null,
    created_at timestamptz not null default now(),
    primary key (tenant, version)
);
comment on table deputize.tenant_keys is
    'Data keys of tenants, wrapped by the master key. Deleting a row erases everything sealed with it.';
select deputize.secure_table('tenant_keys', 'select, insert');

create table deputize.subjects (
    tenant     text not null references deputize.tenants,
    subject    text not null,
    salt       bytea not null,
    created_at timestamptz not null default now(),
    primary key (tenant, subject)
);
comment on table deputize.subjects is
    'Salts behind the pseudonyms in audit entries. Deleting a row makes its subject unlinkable.';
select deputize.secure_table('subjects', 'select, insert, delete');
