-- Budgets leased in slices: govern/limits/budgets.py. What is leased counts as spent until it is given back.

-- name: lease_slice
-- Lease as much of $5 as the limit $6 still allows in the current period, and return how long the period lasts. The
-- row is locked before it is read, so that nothing is leased twice. Returns no row when the period has no row yet.
with period as (
    select floor(floor(extract(epoch from now())::float8 / $4::float8) * $4::float8)::bigint as start
), before as (
    select b.granted, b.period from deputize.budgets b, period
    where b.tenant = $1 and b.rule = $2 and b.key = $3 and b.period = period.start
    for update of b
)
update deputize.budgets b set granted = b.granted + least($5::bigint, greatest($6::bigint - before.granted, 0))
from before
where b.tenant = $1 and b.rule = $2 and b.key = $3 and b.period = before.period
returning b.granted - before.granted as granted, b.period,
    (floor(extract(epoch from now())::float8 / $4::float8) + 1) * $4::float8 - extract(epoch from clock_timestamp())::float8
        as seconds_left;

-- name: insert_period
insert into deputize.budgets (tenant, rule, key, period)
values ($1, $2, $3, floor(floor(extract(epoch from now())::float8 / $4::float8) * $4::float8)::bigint)
on conflict do nothing;

-- name: return_unspent_budget
-- Give back what was not spent of a slice. The amount is negative where more was spent than leased.
update deputize.budgets b set granted = b.granted - each.amount
from unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[]) as each (tenant, rule, key, period, amount)
where b.tenant = each.tenant and b.rule = each.rule and b.key = each.key and b.period = each.period;

-- name: delete_old_periods
delete from deputize.budgets
where tenant = $1 and rule = $2 and period < extract(epoch from now())::bigint - $3::bigint;
