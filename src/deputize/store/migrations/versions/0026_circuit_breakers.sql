create table deputize.circuit_breakers (
    tenant              text not null references deputize.tenants,
    service             text not null,
    state               text not null default 'closed' check (state in ('closed', 'open', 'half_open')),
    -- Each change of state adds one.
    epoch               bigint not null default 0,
    changed_at          timestamptz not null default to_timestamp(0),
    -- Why it opened last.
    reason              text not null default '',
    -- When calls failed since it closed, as all gateways together saw it.
    failures            timestamptz[] not null default '{}',
    -- What the contract declares whose call opened it.
    success_threshold   integer not null default 3,
    timeout_seconds     integer not null default 60,
    half_open_max_calls integer not null default 10,
    successes           integer not null default 0,
    -- Trials without a result, and when each is given up.
    trial_ids           uuid[] not null default '{}',
    trial_ends          timestamptz[] not null default '{}',
    updated_at          timestamptz not null default clock_timestamp(),
    primary key (tenant, service),
    check (cardinality(trial_ids) = cardinality(trial_ends))
);
create index circuit_breakers_unclosed on deputize.circuit_breakers (tenant, changed_at) where state <> 'closed';
comment on table deputize.circuit_breakers is
    'Whether calls to each external service pass. Gateways change a row under its lock, and read all that are not closed.';
select deputize.secure_table('circuit_breakers', 'select, insert, update, delete');

create table deputize.circuit_transitions (
    tenant     text not null references deputize.tenants,
    -- That of the audit entry.
    id         uuid not null,
    service    text not null,
    epoch      bigint not null,
    from_state text not null,
    to_state   text not null,
    changed_at timestamptz not null,
    reason     text not null,
    primary key (tenant, id)
);
create index circuit_transitions_by_time on deputize.circuit_transitions (changed_at);
comment on table deputize.circuit_transitions is
    'The history of circuit breakers: when each opened, tried its service again and closed, and why.';
select deputize.secure_table('circuit_transitions', 'select, insert, delete');
