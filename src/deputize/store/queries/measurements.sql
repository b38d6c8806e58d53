-- Measured calls: how they ended, what they took and cost. evidence/call_measurements.py.

-- name: add_measurements
-- Add to the rows of a day; the arrays of a histogram come as texts, because arrays of arrays must be rectangular.
insert into deputize.call_measurements as m
    (tenant, name, version, day, succeeded_calls, rejected_calls, failed_calls, timed_out_calls, unknown_calls,
     slow_calls, max_latency_us, cost_micros, max_cost_micros, latency_buckets, latency_counts)
select n.tenant, n.name, n.version, $1::date, n.successes, n.rejections, n.failures, n.timeouts, n.unknown_outcomes,
       n.slow, n.max_latency_us, n.cost_micros, n.max_cost_micros, n.buckets::smallint[], n.counts::bigint[]
from unnest($2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[],
            $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::text[], $15::text[])
    as n(tenant, name, version, successes, rejections, failures, timeouts, unknown_outcomes,
         slow, max_latency_us, cost_micros, max_cost_micros, buckets, counts)
on conflict (tenant, name, day, version) do update
set succeeded_calls = m.succeeded_calls + excluded.succeeded_calls,
    rejected_calls = m.rejected_calls + excluded.rejected_calls,
    failed_calls = m.failed_calls + excluded.failed_calls,
    timed_out_calls = m.timed_out_calls + excluded.timed_out_calls,
    unknown_calls = m.unknown_calls + excluded.unknown_calls,
    slow_calls = m.slow_calls + excluded.slow_calls,
    max_latency_us = greatest(m.max_latency_us, excluded.max_latency_us),
    cost_micros = m.cost_micros + excluded.cost_micros,
    max_cost_micros = greatest(m.max_cost_micros, excluded.max_cost_micros),
    (latency_buckets, latency_counts) = (
        select coalesce(array_agg(s.bucket order by s.bucket), '{}'), coalesce(array_agg(s.calls order by s.bucket), '{}')
        from (
            select l.bucket, sum(l.calls)::bigint as calls
            from unnest(m.latency_buckets || excluded.latency_buckets, m.latency_counts || excluded.latency_counts)
                as l(bucket, calls)
            group by l.bucket
        ) as s
    );

-- name: list_measurements
-- The versions of a tool since a day, or one of them, those with most calls first.
select version, sum(succeeded_calls)::bigint as successes, sum(rejected_calls)::bigint as rejections,
       sum(failed_calls)::bigint as failures, sum(timed_out_calls)::bigint as timeouts,
       sum(unknown_calls)::bigint as unknown_outcomes, sum(slow_calls)::bigint as slow_calls,
       max(max_latency_us) as max_latency_us, sum(cost_micros)::float8 as cost_micros,
       max(max_cost_micros) as max_cost_micros
from deputize.call_measurements
where tenant = $1 and name = $2 and day >= $3 and ($4::text is null or version = $4)
group by version
order by sum(succeeded_calls + rejected_calls + failed_calls + timed_out_calls + unknown_calls) desc, version
limit $5;

-- name: list_latencies
select m.version, l.bucket, sum(l.calls)::bigint as calls
from deputize.call_measurements m
cross join lateral unnest(m.latency_buckets, m.latency_counts) as l(bucket, calls)
where m.tenant = $1 and m.name = $2 and m.day >= $3 and m.version = any ($4::text[])
group by m.version, l.bucket
order by m.version, l.bucket;

-- name: delete_old_measurements
delete from deputize.call_measurements where day < $1;

-- name: add_recent_measurements
-- Takes what add_measurements takes, with a minute in place of the day.
insert into deputize.recent_measurements as m
    (tenant, minute, name, version, calls, errors, timeouts, max_latency_us, latency_buckets, latency_counts)
select n.tenant, $1::timestamptz, n.name, n.version,
       n.successes + n.rejections + n.failures + n.timeouts + n.unknown_outcomes,
       n.rejections + n.failures + n.timeouts + n.unknown_outcomes, n.timeouts, n.max_latency_us,
       n.buckets::smallint[], n.counts::bigint[]
from unnest($2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[],
            $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::text[], $15::text[])
    as n(tenant, name, version, successes, rejections, failures, timeouts, unknown_outcomes,
         slow, max_latency_us, cost_micros, max_cost_micros, buckets, counts)
on conflict (tenant, minute, name, version) do update
set calls = m.calls + excluded.calls,
    errors = m.errors + excluded.errors,
    timeouts = m.timeouts + excluded.timeouts,
    max_latency_us = greatest(m.max_latency_us, excluded.max_latency_us),
    (latency_buckets, latency_counts) = (
        select coalesce(array_agg(s.bucket order by s.bucket), '{}'), coalesce(array_agg(s.calls order by s.bucket), '{}')
        from (
            select l.bucket, sum(l.calls)::bigint as calls
            from unnest(m.latency_buckets || excluded.latency_buckets, m.latency_counts || excluded.latency_counts)
                as l(bucket, calls)
            group by l.bucket
        ) as s
    );

-- name: list_recent_measurements
-- The tools of a tenant since a minute, those with most errors first, each with its versions.
with tools as (
    select name, sum(errors) as errors, sum(calls) as calls
    from deputize.recent_measurements
    where tenant = $1 and minute >= $2 and ($4::text[] is null or name = any($4))
    group by name
    order by 2 desc, 3 desc, name
    limit $3
), versions as (
    select m.name, m.version, sum(m.calls)::bigint as calls, sum(m.errors)::bigint as errors,
           sum(m.timeouts)::bigint as timeouts, max(m.max_latency_us) as max_latency_us
    from deputize.recent_measurements m
    join tools using (name)
    where m.tenant = $1 and m.minute >= $2
    group by m.name, m.version
), latencies as (
    select m.name, m.version, l.bucket, sum(l.calls)::bigint as calls
    from deputize.recent_measurements m
    join tools using (name)
    cross join lateral unnest(m.latency_buckets, m.latency_counts) as l(bucket, calls)
    where m.tenant = $1 and m.minute >= $2
    group by m.name, m.version, l.bucket
)
select v.name, v.version, v.calls, v.errors, v.timeouts, v.max_latency_us,
       coalesce(array_agg(l.bucket order by l.bucket) filter (where l.bucket is not null), '{}') as buckets,
       coalesce(array_agg(l.calls order by l.bucket) filter (where l.bucket is not null), '{}') as counts
from versions v
left join latencies l on l.name = v.name and l.version = v.version
group by v.name, v.version, v.calls, v.errors, v.timeouts, v.max_latency_us
order by v.name, v.version;

-- name: delete_old_minutes
delete from deputize.recent_measurements where minute < $1;

-- name: list_minutes
-- All tools of a tenant together, by minute; and of the entries that a search finds, the newest, by their minutes.
with minutes as (
    select minute, sum(calls)::bigint as calls, sum(errors)::bigint as errors, max(max_latency_us) as max_latency_us
    from deputize.recent_measurements
    where tenant = $1 and minute >= $2
    group by minute
), latencies as (
    select m.minute, l.bucket, sum(l.calls)::bigint as calls
    from deputize.recent_measurements m
    cross join lateral unnest(m.latency_buckets, m.latency_counts) as l(bucket, calls)
    where m.tenant = $1 and m.minute >= $2
    group by m.minute, l.bucket
), refusals as (
    -- The first 48 bits of an id are its time.
    select date_trunc('minute', to_timestamp(('x' || left(replace(s.id::text, '-', ''), 12))::bit(48)::bigint / 1000.0))
               as minute,
           count(s.entry) filter (where position('"command":"dry_run"'::bytea in s.entry) = 0) as refusals, bool_or(s.entry is null) as is_cut
    from deputize.search_audit(p_labels => $3, p_needles => $4::text::jsonb, p_first => $5, p_before => $6,
        p_limit => $7, p_milliseconds => $8) as s
    group by 1
)
select coalesce(m.minute, r.minute) as minute, coalesce(m.calls, 0) as calls, coalesce(m.errors, 0) as errors,
       coalesce(m.max_latency_us, 0) as max_latency_us, coalesce(r.refusals, 0) as refusals,
       coalesce(r.is_cut, false) as is_cut,
       coalesce(array_agg(l.bucket order by l.bucket) filter (where l.bucket is not null), '{}') as buckets,
       coalesce(array_agg(l.calls order by l.bucket) filter (where l.bucket is not null), '{}') as counts
from minutes m
full join refusals r on r.minute = m.minute
left join latencies l on l.minute = m.minute
group by m.minute, m.calls, m.errors, m.max_latency_us, r.minute, r.refusals, r.is_cut
order by 1;
