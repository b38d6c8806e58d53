-- Who may: policies, the records of decisions, delegations, switches, secrets, budgets. Only additions, so that the
-- release before goes on serving.

-- Every set of policies that was ever in force; the newest by epoch is the one that is. A set without files stands for
-- the default set.
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

-- What decisions were made from, once per kind of question; audit entries name the record they were decided by.
create table deputize.decisions (
    tenant   text not null,
    id       text not null,
    record   bytea not null,
    first_at timestamptz not null default now(),
    primary key (tenant, id)
);

-- Durable delegations. What a person lent to an agent, for what, and until when; never a token.
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

-- Keys this gateway signs with, one line per tenant, sealed with the tenant's key.
create table deputize.signing_keys (
    tenant     text not null references deputize.tenants,
    kid        text not null,
    sealed     bytea not null,
    public_jwk bytea not null,
    created_at timestamptz not null default now(),
    retired_at timestamptz,
    primary key (tenant, kid)
);

-- Kill switches: a row is off from off_epoch until on_epoch, in revocation epochs.
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

-- Secrets of tools, sealed with the tenant's key, for gateways without a vault.
create table deputize.secrets (
    tenant     text not null references deputize.tenants,
    name       text not null,
    sealed     bytea not null,
    updated_at timestamptz not null default now(),
    updated_by text not null,
    primary key (tenant, name)
);

-- Budgets are leased to gateways in slices, so that no row is hot: what is leased counts as spent until given back.
create table deputize.budgets (
    tenant  text not null,
    rule    text not null,
    key     text not null,
    period  bigint not null,
    granted bigint not null default 0,
    primary key (tenant, rule, key, period)
);

do $$
declare name text;
begin
    foreach name in array array['policies', 'decisions', 'grants', 'signing_keys', 'switches', 'secrets', 'budgets'] loop
        execute format('alter table deputize.%I enable row level security', name);
        execute format('alter table deputize.%I force row level security', name);
        execute format('create policy one_tenant on deputize.%I for select to deputize_reader
                        using (tenant = current_setting(''deputize.tenant'', true))', name);
        execute format('create policy every_tenant on deputize.%I to deputize_writer using (true) with check (true)', name);
        execute format('create policy owner_maintains on deputize.%I to deputize_owner using (true) with check (true)', name);
        execute format('grant select on deputize.%I to deputize_reader', name);
        execute format('grant select, insert on deputize.%I to deputize_writer', name);
    end loop;
end $$;
grant update on deputize.switches, deputize.secrets, deputize.budgets, deputize.signing_keys to deputize_writer;
grant delete on deputize.secrets, deputize.budgets to deputize_writer;

-- Revocation by grant, user and agent. `subject`, which reached both, stays: the release before writes and reads it.
alter table deputize.revocations drop constraint revocations_kind_check;
alter table deputize.revocations add constraint revocations_kind_check
    check (kind in ('token', 'subject', 'user', 'agent', 'grant'));
