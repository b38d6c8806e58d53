-- What calls cost, by day, tool, caller and task. evidence/call_costs.py.

-- name: add_costs
-- Add to the rows of a day. Callers come as pseudonyms joined by commas, because arrays of arrays must be rectangular.
insert into deputize.call_costs as c
    (tenant, day, tool, version, caller, task, currency, calls, compute_seconds, storage_bytes, network_bytes, tokens,
     reviews, review_seconds, compute_cost, external_api_cost, storage_io_cost, network_cost, token_cost,
     human_review_cost)
select n.tenant, $1::date, n.tool, n.version, string_to_array(n.caller, ','), n.task, n.currency, n.calls,
       n.compute_seconds, n.storage_bytes, n.network_bytes, n.tokens, n.reviews, n.review_seconds, n.compute_cost,
       n.external_api_cost, n.storage_io_cost, n.network_cost, n.token_cost, n.human_review_cost
from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::float8[],
            $10::float8[], $11::float8[], $12::float8[], $13::bigint[], $14::float8[], $15::float8[], $16::float8[],
            $17::float8[], $18::float8[], $19::float8[], $20::float8[])
    as n(tenant, tool, version, caller, task, currency, calls, compute_seconds, storage_bytes, network_bytes, tokens,
         reviews, review_seconds, compute_cost, external_api_cost, storage_io_cost, network_cost, token_cost,
         human_review_cost)
on conflict (tenant, day, tool, version, caller, task, currency) do update
set calls = c.calls + excluded.calls,
    compute_seconds = c.compute_seconds + excluded.compute_seconds,
    storage_bytes = c.storage_bytes + excluded.storage_bytes,
    network_bytes = c.network_bytes + excluded.network_bytes,
    tokens = c.tokens + excluded.tokens,
    reviews = c.reviews + excluded.reviews,
    review_seconds = c.review_seconds + excluded.review_seconds,
    compute_cost = c.compute_cost + excluded.compute_cost,
    external_api_cost = c.external_api_cost + excluded.external_api_cost,
    storage_io_cost = c.storage_io_cost + excluded.storage_io_cost,
    network_cost = c.network_cost + excluded.network_cost,
    token_cost = c.token_cost + excluded.token_cost,
    human_review_cost = c.human_review_cost + excluded.human_review_cost;

-- name: list_costs
-- The costs of a tenant since a day, of all callers, of a user or of one chain, and of some tools or all. For each currency a row without a group,
-- the sum of all, then the groups that cost most.
with costs as (
    select case $5::text
               when 'tool' then c.tool
               when 'version' then c.tool || '@' || c.version
               when 'caller' then array_to_string(c.caller, ',')
               when 'task' then c.task
               when 'day' then to_char(c.day, 'YYYY-MM-DD')
           end as group_name, c.*
    from deputize.call_costs c
    where c.tenant = $1 and c.day >= $2::date and ($3::text is null or c.caller[1] = $3)
      and ($4::text[] is null or c.caller = $4) and ($7::text[] is null or c.tool = any($7))
), sums as (
    select grouping(group_name) = 1 as is_sum, currency, group_name, sum(calls)::bigint as calls,
           sum(compute_seconds) as compute_seconds, sum(storage_bytes) as storage_bytes,
           sum(network_bytes) as network_bytes, sum(tokens) as tokens, sum(reviews)::bigint as reviews,
           sum(review_seconds) as review_seconds, sum(compute_cost) as compute_cost,
           sum(external_api_cost) as external_api_cost, sum(storage_io_cost) as storage_io_cost,
           sum(network_cost) as network_cost, sum(token_cost) as token_cost,
           sum(human_review_cost) as human_review_cost,
           sum(compute_cost + external_api_cost + storage_io_cost + network_cost + token_cost + human_review_cost)
               as total_cost
    from costs
    group by grouping sets ((currency, group_name), (currency))
), ranks as (
    select *, row_number() over (
        partition by currency, is_sum order by total_cost desc, calls desc, group_name
    ) as place
    from sums
)
select * from ranks
where is_sum or place <= $6
order by currency, is_sum desc, place;

-- name: delete_old_costs
delete from deputize.call_costs where day < $1::date;
