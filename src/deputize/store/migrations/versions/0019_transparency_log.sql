create table deputize.log_sequencer (
    only_row   boolean primary key default true check (only_row),
    owner      uuid,
    -- Each takeover adds one, and no older epoch may write to a log.
    epoch      bigint not null default 0,
    expires_at timestamptz not null default now()
);
comment on table deputize.log_sequencer is
    'The lease of the one process that appends entries to logs. Each of its transactions updates this row.';
grant select, update on deputize.log_sequencer to deputize_writer;
insert into deputize.log_sequencer default values;

create table deputize.log_queue (
    tenant   text not null,
    entry_id uuid not null,
    primary key (tenant, entry_id)
-- Every row is deleted within a second: vacuumed by number of rows, not by share of them.
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
comment on table deputize.log_queue is
    'Entries that are not in their tenant''s log yet. The insertion of an entry adds it, in the same transaction.';
select deputize.secure_table('log_queue', 'select, insert, delete');

create table deputize.log_leaves (
    tenant     text not null,
    leaf_index bigint not null check (leaf_index >= 0),
    entry_id   uuid not null,
    hash       bytea not null check (octet_length(hash) = 32),
    primary key (tenant, leaf_index)
);
create unique index log_leaves_by_entry on deputize.log_leaves (tenant, entry_id);
comment on table deputize.log_leaves is 'The order of entries in their tenant''s log, and the hash of each as a leaf.';
select deputize.secure_table('log_leaves', 'select, insert');

create table deputize.log_nodes (
    tenant     text not null,
    level      smallint not null check (level between 1 and 7),
    node_index bigint not null check (node_index >= 0),
    hash       bytea not null check (octet_length(hash) = 32),
    primary key (tenant, level, node_index)
);
comment on table deputize.log_nodes is 'The hashes of complete subtrees of 256^level leaves: what tiles above the leaves show.';
select deputize.secure_table('log_nodes', 'select, insert');

create table deputize.log_checkpoints (
    tenant    text not null,
    size      bigint not null check (size > 0),
    root      bytea not null check (octet_length(root) = 32),
    note      bytea not null,
    signed_at timestamptz not null default clock_timestamp(),
    primary key (tenant, size)
);
comment on table deputize.log_checkpoints is 'What each log signed, one root for each size.';
select deputize.secure_table('log_checkpoints', 'select, insert');

create table deputize.log_keys (
    tenant       text not null references deputize.tenants,
    key_id       text not null,
    verifier_key text not null,
    sealed       bytea not null,
    created_at   timestamptz not null default clock_timestamp(),
    -- A key that was replaced signs beside its successor for a while.
    signs_until  timestamptz,
    primary key (tenant, key_id)
);
create unique index log_keys_current on deputize.log_keys (tenant) where signs_until is null;
comment on table deputize.log_keys is
    'The keys of each tenant''s log, sealed, with the public half as text. The name in it is the name of the log.';
select deputize.secure_table('log_keys', 'select, insert, update');

create table deputize.log_backlogs (
    tenant   text primary key references deputize.tenants,
    after_id uuid not null default '00000000-0000-0000-0000-000000000000'
);
comment on table deputize.log_backlogs is
    'Tenants with entries from before the log, and how far these have been queued.';
select deputize.secure_table('log_backlogs', 'select, update, delete');

create function deputize.enqueue_entries() returns trigger language plpgsql set search_path = pg_catalog as $$
begin
    insert into deputize.log_queue (tenant, entry_id) select e.tenant, e.id from new_entries as e;
    return null;
end $$;
comment on function deputize.enqueue_entries is 'Queue new audit entries for the log of their tenant.';

-- Waits for every transaction that inserts entries: those committed before are found by the backlogs, and all later ones
-- are queued.
create trigger enqueue_entries after insert on deputize.audit_entries
    referencing new table as new_entries for each statement execute function deputize.enqueue_entries();
insert into deputize.log_backlogs (tenant) select t.tenant from deputize.tenants t;

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
revoke execute on function deputize.secure_table, deputize.erase_calls, deputize.erase_names from deputize_writer;
