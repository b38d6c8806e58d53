-- The spine: tenants, their keys and epochs, the registry, calls and claims, audit entries, leases, revocations.
-- Tenant leads every key. Calls, entries and sealed originals are partitioned by day through their UUIDv7 ids.

grant usage on schema deputize to deputize_reader, deputize_writer;

create table deputize.tenants (
    tenant     text primary key check (tenant ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    created_at timestamptz not null default now()
);

-- How often each kind of authority changed. Changed only under the tenant's exclusive barrier lock,
-- read under the shared one by every batch: see 0001_commit.sql.
create table deputize.epochs (
    tenant     text primary key references deputize.tenants,
    registry   bigint not null default 0,
    policy     bigint not null default 0,
    revocation bigint not null default 0
);

-- The tenant's data key, wrapped by the master key. Losing a row erases everything sealed with it.
create table deputize.tenant_keys (
    tenant     text not null references deputize.tenants,
    version    integer not null,
    wrapped    bytea not null,
    created_at timestamptz not null default now(),
    primary key (tenant, version)
);

-- Salts behind the pseudonyms in audit entries; deleting a row makes its subject unlinkable.
create table deputize.subjects (
    tenant     text not null references deputize.tenants,
    subject    text not null,
    salt       bytea not null,
    created_at timestamptz not null default now(),
    primary key (tenant, subject)
);

create table deputize.tools (
    tenant       text not null references deputize.tenants,
    name         text not null,
    outward_name text not null,
    created_at   timestamptz not null default now(),
    primary key (tenant, name),
    unique (tenant, outward_name)
);

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
    -- When it came into the state it left at changed_epoch: says what stood at a commit in between.
    before_epoch  bigint not null default 0,
    primary key (tenant, name, version),
    foreign key (tenant, name) references deputize.tools
);
create index tool_versions_changed on deputize.tool_versions (tenant, changed_epoch);

create table deputize.revocations (
    tenant        text not null references deputize.tenants,
    kind          text not null check (kind in ('token', 'subject')),
    value         text not null,
    reason        text not null default '',
    revoked_at    timestamptz not null default now(),
    revoked_by    text not null,
    changed_epoch bigint not null,
    primary key (tenant, kind, value)
);
create index revocations_changed on deputize.revocations (tenant, changed_epoch);

-- One row per process boot. A process that cannot prove its lease dispatches nothing.
create table deputize.leases (
    boot       uuid primary key,
    started_at timestamptz not null default now(),
    expires_at timestamptz not null,
    release    text not null
);

-- No foreign key to tenants: commit_calls checks once per batch what the key would check once per row.
create table deputize.calls (
    tenant         text not null,
    id             uuid not null,
    state          text not null,
    tool           text not null,
    version        text not null,
    tool_digest    text not null,
    mutation_class text not null,
    caller_user    text not null,
    caller_agent   text not null,
    session        text,
    fingerprint    bytea not null,
    claim_scope    bytea,
    claim_key      bytea,
    owner          uuid not null,
    owner_epoch    integer not null default 1,
    created_at     timestamptz not null default now(),
    deadline_at    timestamptz not null,
    ended_at       timestamptz,
    window_seconds integer not null,
    window_ends    timestamptz,
    cancel_asked   timestamptz,
    error          text,
    nothing_happened boolean not null default false,
    trace          text not null,
    primary key (tenant, id)
) partition by range (id);
-- What a dead process left open: the sweeper's only question.
create index calls_open on deputize.calls (owner, deadline_at) where state = 'running';
create index calls_by_caller on deputize.calls (tenant, caller_user, id);

-- Who owns a key. Insert-only until released, retaken after its window, or purged; see docs/decisions/0007.
create table deputize.claims (
    tenant  text not null,
    scope   bytea not null,
    key     bytea not null,
    call_id uuid not null,
    primary key (tenant, scope, key)
) partition by hash (tenant, scope, key);
do $$ begin
    for n in 0..15 loop
        execute format('create table deputize.claims_%s partition of deputize.claims for values with (modulus 16, remainder %s)', n, n);
    end loop;
end $$;

-- Originals needed to replay or continue a call, sealed with the tenant's key, dropped at retention.
create table deputize.sealed (
    tenant text not null,
    id     uuid not null,
    kind   text not null check (kind in ('input', 'outcome')),
    box    bytea not null,
    primary key (tenant, id, kind)
) partition by range (id);

-- Append-only: canonical bytes that will be hashed into the tenant's log, and the salts that stay outside them.
create table deputize.audit_entries (
    tenant  text not null,
    id      uuid not null,
    call_id uuid,
    entry   bytea not null,
    salt    bytea,
    primary key (tenant, id)
) partition by range (id);
create index audit_entries_by_call on deputize.audit_entries (tenant, call_id) where call_id is not null;

-- The smallest UUIDv7 of a day: where that day's partition begins.
create function deputize.day_floor(day date) returns uuid language sql immutable as $$
    select (lpad(to_hex((extract(epoch from day::timestamp) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid
$$;

-- Makes the partitions of the days around today; run at start-up and by the sweeper, safe to repeat. Made apart and then
-- attached, because making one in place locks the parent against everybody until every reader and writer is done.
create procedure deputize.make_partitions(days_ahead integer) language plpgsql
    security definer set search_path = pg_catalog as $$
declare
    parent text;
    part text;
    day date;
begin
    perform pg_advisory_xact_lock(hashtextextended('deputize.make_partitions', 0));
    foreach parent in array array['calls', 'sealed', 'audit_entries'] loop
        for offset_days in -1..days_ahead loop
            day := (now() at time zone 'utc')::date + offset_days;
            part := parent || to_char(day, '_YYYYMMDD');
            continue when to_regclass(format('deputize.%I', part)) is not null;
            execute format('create table deputize.%I (like deputize.%I including all)', part, parent);
            execute format('alter table deputize.%I attach partition deputize.%I for values from (%L) to (%L)',
                parent, part, deputize.day_floor(day), deputize.day_floor(day + 1));
        end loop;
    end loop;
end $$;
call deputize.make_partitions(7);

create function deputize.barrier_key(tenant text) returns bigint language sql immutable parallel safe
    as $$ select hashtextextended('deputize.barrier.' || tenant, 0) $$;

-- Row-level security, forced: a reader sees the tenant it named and no other; the writer's batches carry many.
do $$
declare name text;
begin
    foreach name in array array['tenants', 'epochs', 'tenant_keys', 'subjects', 'tools', 'tool_versions', 'revocations',
                                'calls', 'claims', 'sealed', 'audit_entries'] loop
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
grant update on deputize.epochs, deputize.tool_versions, deputize.revocations, deputize.calls, deputize.claims,
    deputize.sealed to deputize_writer;
grant delete on deputize.claims, deputize.subjects to deputize_writer;
grant select, insert, update, delete on deputize.leases to deputize_writer;
