-- Registered tools and their versions.

create table deputize.tools (
    tenant       text not null references deputize.tenants,
    name         text not null,
    outward_name text not null,
    created_at   timestamptz not null default now(),
    primary key (tenant, name),
    unique (tenant, outward_name)
);
comment on table deputize.tools is 'Names of tools, each with the name that clients see.';
select deputize.secure_table('tools', 'select, insert');

create table deputize.tool_versions (
    tenant        text not null,
    name          text not null,
    version       text not null,
    digest        text not null,
    contract      bytea not null,
    state         text not null check (state in
        ('draft', 'available', 'disabled', 'requires_setup', 'deferred', 'deprecated', 'retired')),
    registered_at timestamptz not null default now(),
    registered_by text not null,
    changed_epoch bigint not null,
    -- The epoch of the change before: the version was in its former state from here until changed_epoch.
    before_epoch  bigint not null default 0,
    primary key (tenant, name, version),
    foreign key (tenant, name) references deputize.tools
);
create index tool_versions_changed on deputize.tool_versions (tenant, changed_epoch);
comment on table deputize.tool_versions is
    'Contracts of tools by version, with their state and the registry epoch of its last change.';
select deputize.secure_table('tool_versions', 'select, insert, update');
