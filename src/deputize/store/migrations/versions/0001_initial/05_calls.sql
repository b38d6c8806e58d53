-- Calls, their idempotency claims, their sealed payloads and their audit entries. All but claims are partitioned by day
-- through their UUIDv7 ids: see docs/decisions/0008.

create table deputize.leases (
    boot       uuid primary key,
    started_at timestamptz not null default now(),
    expires_at timestamptz not null,
    release    text not null
);
comment on table deputize.leases is
    'One lease per start of a process. A process that cannot renew its lease dispatches nothing.';
grant select, insert, update, delete on deputize.leases to deputize_writer;

-- No foreign key to tenants: select_epochs checks once per batch what the key would check once per row.
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
    -- The boot that executes it; each takeover adds one to the epoch, and no older epoch may write an outcome.
    owner          uuid not null,
    owner_epoch    integer not null default 1,
    created_at     timestamptz not null default now(),
    deadline_at    timestamptz not null,
    ended_at       timestamptz,
    -- How long its idempotency key is remembered after it ended, and until when that is.
    window_seconds integer not null,
    window_ends    timestamptz,
    cancel_requested_at timestamptz,
    error          text,
    nothing_happened boolean not null default false,
    trace          text not null,
    -- Whether someone is called back when it ends; whether it ever requested resource locks; whether it may begin only
    -- with an approval.
    has_callback   boolean not null default false,
    uses_resource_locks boolean not null default false,
    needs_approval boolean not null default false,
    primary key (tenant, id)
) partition by range (id);
-- For the sweeper, which looks for calls that a dead process left open.
create index calls_open on deputize.calls (owner, deadline_at) where state = 'running';
create index calls_by_caller on deputize.calls (tenant, caller_user, id);
create index calls_queued on deputize.calls (tenant, id) where state = 'queued';
comment on table deputize.calls is 'One row for each call that may change something, and for each run.';
select deputize.secure_table('calls', 'select, insert, update');

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
comment on table deputize.claims is
    'Which call owns an idempotency key. Rows are inserted, and deleted when the key is released or its window is over: '
    'see docs/decisions/0007.';
select deputize.secure_table('claims', 'select, insert, update, delete');

create table deputize.sealed_payloads (
    tenant text not null,
    id     uuid not null,
    kind   text not null check (kind in ('input', 'outcome', 'answers')),
    ciphertext    bytea not null,
    primary key (tenant, id, kind)
) partition by range (id);
comment on table deputize.sealed_payloads is
    'What is needed to replay or continue a call, sealed with the tenant''s key and deleted when its retention ends.';
select deputize.secure_table('sealed_payloads', 'select, insert, update');

create table deputize.audit_entries (
    tenant  text not null,
    id      uuid not null,
    call_id uuid,
    entry   bytea not null,
    salt    bytea,
    primary key (tenant, id)
) partition by range (id);
create index audit_entries_by_call on deputize.audit_entries (tenant, call_id) where call_id is not null;
comment on table deputize.audit_entries is
    'The audit log, append-only: canonical bytes of each entry, and the salt that stays outside of them.';
select deputize.secure_table('audit_entries', 'select, insert');

create function deputize.first_uuid_of_day(day date) returns uuid language sql immutable as $$
    select (lpad(to_hex((extract(epoch from day::timestamp) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid
$$;
comment on function deputize.first_uuid_of_day is 'Return the smallest UUIDv7 of a day, where the day''s partition begins.';

create procedure deputize.create_partitions(days_ahead integer) language plpgsql
    security definer set search_path = pg_catalog as $$
declare
    parent text;
    part text;
    day date;
begin
    perform pg_advisory_xact_lock(hashtextextended('deputize.create_partitions', 0));
    foreach parent in array array['calls', 'sealed_payloads', 'audit_entries'] loop
        for offset_days in -1..days_ahead loop
            day := (now() at time zone 'utc')::date + offset_days;
            part := parent || to_char(day, '_YYYYMMDD');
            continue when to_regclass(format('deputize.%I', part)) is not null;
            -- Made alone and then attached: making one in place locks the parent until every reader and writer is done.
            execute format('create table deputize.%I (like deputize.%I including all)', part, parent);
            execute format('alter table deputize.%I attach partition deputize.%I for values from (%L) to (%L)',
                parent, part, deputize.first_uuid_of_day(day), deputize.first_uuid_of_day(day + 1));
        end loop;
    end loop;
end $$;
comment on procedure deputize.create_partitions is
    'Make the partitions of yesterday, today and some days ahead. Called at start and by the sweeper; safe to repeat.';
call deputize.create_partitions(7);
