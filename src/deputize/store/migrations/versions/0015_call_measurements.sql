create table deputize.call_measurements (
    tenant           text not null,
    name             text not null,
    version          text not null,
    day              date not null,
    succeeded_calls  bigint not null,
    -- The tool returned a result that its contract does not allow.
    rejected_calls   bigint not null,
    failed_calls     bigint not null,
    timed_out_calls  bigint not null,
    unknown_calls    bigint not null,
    -- Calls that took longer than the contract's objective for the p99.
    slow_calls       bigint not null,
    max_latency_us   bigint not null,
    cost_micros      numeric not null,
    max_cost_micros  bigint not null,
    -- A histogram of latencies: eight buckets for each doubling, in microseconds; only those that have calls.
    latency_buckets  smallint[] not null,
    latency_counts   bigint[] not null,
    primary key (tenant, name, day, version),
    check (cardinality(latency_buckets) = cardinality(latency_counts))
);
create index call_measurements_by_day on deputize.call_measurements (day);
comment on table deputize.call_measurements is
    'How calls of each version ended, what they took and cost, by day. Written every few seconds by each process.';
select deputize.secure_table('call_measurements', 'select, insert, update, delete');
