create table deputize.recent_measurements (
    tenant           text not null,
    minute           timestamptz not null,
    name             text not null,
    version          text not null,
    calls            bigint not null,
    -- Calls that did not succeed, those that timed out among them.
    errors           bigint not null,
    timeouts         bigint not null,
    max_latency_us   bigint not null,
    -- A histogram of latencies, as in call_measurements.
    latency_buckets  smallint[] not null,
    latency_counts   bigint[] not null,
    primary key (tenant, minute, name, version),
    check (cardinality(latency_buckets) = cardinality(latency_counts))
);
create index recent_measurements_by_minute on deputize.recent_measurements (minute);
comment on table deputize.recent_measurements is
    'How calls of each version ended and what they took in the last hours, by minute. Written with call_measurements.';
select deputize.secure_table('recent_measurements', 'select, insert, update, delete');
