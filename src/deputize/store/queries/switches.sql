-- Kill switches: govern/switches.py. A row is off from off_epoch until on_epoch, both epochs of revocation.

-- name: switches_since
-- The epoch, and if it is newer than the one already known, every switch that is off, with those lately turned on again:
-- a call may be decided as of an epoch that is a little older.
select e.revocation as epoch, s.kind, s.value, s.off_epoch, s.on_epoch, s.reason, s.turned_by, s.turned_at
from deputize.epochs e
left join deputize.switches s
    on s.tenant = e.tenant and e.revocation > $2 and (s.on_epoch is null or s.on_epoch > e.revocation - 1000)
where e.tenant = $1;

-- name: switch_off
-- The row lock on the epoch is held until commit, so epochs become visible in the order of their numbers. What is off
-- stays off as it was, and every gateway looks once more.
with raised as (
    update deputize.epochs set revocation = revocation + 1 where tenant = $1 returning revocation
), noted as (
    insert into deputize.switches (tenant, kind, value, off_epoch, reason, turned_by)
    select $1, $2, $3, raised.revocation, $4, $5 from raised
    where not exists (select from deputize.switches
                      where tenant = $1 and kind = $2 and value = $3 and on_epoch is null)
)
select revocation from raised;

-- name: switch_on
with raised as (
    update deputize.epochs set revocation = revocation + 1 where tenant = $1 returning revocation
), turned as (
    update deputize.switches set on_epoch = raised.revocation from raised
    where tenant = $1 and kind = $2 and value = $3 and on_epoch is null
)
select revocation from raised;
