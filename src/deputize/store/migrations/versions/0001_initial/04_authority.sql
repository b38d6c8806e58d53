-- What decides whether a call may happen: policies, decision records, delegations, revocations, kill switches, signing
-- keys, secrets and budgets.

create table deputize.policies (
    tenant        text not null references deputize.tenants,
    changed_epoch bigint not null,
    digest        text not null,
    files         bytea not null,
    facts         bytea not null,
    put_by        text not null,
    put_at        timestamptz not null default now(),
    primary key (tenant, changed_epoch)
);
comment on table deputize.policies is
    'Every policy set that was ever active. The one with the newest epoch is active now; a set without files stands for '
    'the default set.';
select deputize.secure_table('policies', 'select, insert');

create table deputize.decisions (
    tenant   text not null,
    id       text not null,
    record   bytea not null,
    first_at timestamptz not null default now(),
    primary key (tenant, id)
);
comment on table deputize.decisions is
    'Records of what decisions were made from, one per distinct question. Audit entries name the record they relied on.';
select deputize.secure_table('decisions', 'select, insert');

create table deputize.grants (
    tenant     text not null references deputize.tenants,
    id         uuid not null,
    parent     uuid,
    grantor    text not null,
    agents     text[] not null,
    scopes     text[] not null,
    tools      bytea,
    ceiling    text check (ceiling in ('read', 'write', 'destructive')),
    task       text,
    constraints bytea,
    not_after  timestamptz not null,
    created_at timestamptz not null default now(),
    primary key (tenant, id),
    foreign key (tenant, parent) references deputize.grants (tenant, id)
);
create index grants_by_grantor on deputize.grants (tenant, grantor, id);
comment on table deputize.grants is
    'Delegations: what a person lent to an agent, for which tools and until when. Tokens are never stored.';
select deputize.secure_table('grants', 'select, insert');

create table deputize.revocations (
    tenant        text not null references deputize.tenants,
    -- 'subject' reaches users and agents of one name alike.
    kind          text not null check (kind in ('token', 'subject', 'user', 'agent', 'grant')),
    value         text not null,
    reason        text not null default '',
    revoked_at    timestamptz not null default now(),
    revoked_by    text not null,
    changed_epoch bigint not null,
    primary key (tenant, kind, value)
);
create index revocations_changed on deputize.revocations (tenant, changed_epoch);
comment on table deputize.revocations is 'Tokens, users, agents and grants that are no longer accepted.';
select deputize.secure_table('revocations', 'select, insert, update');

create table deputize.switches (
    tenant    text not null references deputize.tenants,
    kind      text not null check (kind in ('tenant', 'agent', 'tool')),
    value     text not null,
    off_epoch bigint not null,
    on_epoch  bigint,
    reason    text not null default '',
    turned_by text not null,
    turned_at timestamptz not null default now(),
    primary key (tenant, kind, value, off_epoch)
);
comment on table deputize.switches is
    'Kill switches. A row is off from off_epoch until on_epoch, both of them revocation epochs.';
select deputize.secure_table('switches', 'select, insert, update');

create table deputize.signing_keys (
    tenant     text not null references deputize.tenants,
    kid        text not null,
    sealed     bytea not null,
    public_jwk bytea not null,
    created_at timestamptz not null default now(),
    retired_at timestamptz,
    primary key (tenant, kid)
);
comment on table deputize.signing_keys is
    'Keys this gateway signs tokens with for each tenant, sealed with the tenant''s key.';
select deputize.secure_table('signing_keys', 'select, insert, update');

create table deputize.secrets (
    tenant     text not null references deputize.tenants,
    name       text not null,
    sealed     bytea not null,
    updated_at timestamptz not null default now(),
    updated_by text not null,
    primary key (tenant, name)
);
comment on table deputize.secrets is
    'Secrets of tools, sealed with the tenant''s key, for gateways without a vault.';
select deputize.secure_table('secrets', 'select, insert, update, delete');

create table deputize.budgets (
    tenant  text not null,
    rule    text not null,
    key     text not null,
    period  bigint not null,
    granted bigint not null default 0,
    primary key (tenant, rule, key, period)
);
comment on table deputize.budgets is
    'Budgets, leased to gateways in slices so that no row is hot. What is leased counts as spent until it is given back.';
select deputize.secure_table('budgets', 'select, insert, update, delete');
