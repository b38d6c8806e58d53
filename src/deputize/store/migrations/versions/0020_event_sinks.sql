create table deputize.event_sinks (
    name       text primary key,
    owner      uuid,
    -- Each takeover adds one, and no older epoch may move a position.
    epoch      bigint not null default 0,
    expires_at timestamptz not null default now(),
    -- When the sink first ran: what was logged before is not sent, unless its settings ask for it.
    started_at timestamptz,
    sent_count bigint not null default 0,
    sent_at    timestamptz,
    -- Attempts that failed since the last one that succeeded, and what the last of them met.
    failures   integer not null default 0,
    last_error text,
    failed_at  timestamptz
);
comment on table deputize.event_sinks is
    'Where events are sent: the lease of the one process that sends to each sink, and how its last attempts went.';
grant select, insert, update on deputize.event_sinks to deputize_writer;

create table deputize.event_positions (
    tenant     text not null references deputize.tenants,
    sink       text not null references deputize.event_sinks,
    next_index bigint not null check (next_index >= 0),
    primary key (tenant, sink)
);
comment on table deputize.event_positions is
    'How far each sink has got in each tenant''s log: the index of the first leaf that it has not acknowledged.';
select deputize.secure_table('event_positions', 'select, insert, update');

-- Ids of one millisecond are in no order, and clocks differ: entries are queued, logged and sent in the order in which
-- they were written, so that what a call did later never comes first.
alter table deputize.log_queue
    add column number bigint generated always as identity,
    drop constraint log_queue_pkey,
    add primary key (tenant, number);
