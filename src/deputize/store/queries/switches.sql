-- Kill switches: govern/kill_switches.py. A row is off from off_epoch until on_epoch, both of them revocation
-- epochs.

-- name: list_switches_since
-- The epoch; and if it is newer than the known one, every switch that is off or was turned on lately, because a call
-- may be decided as of a slightly older epoch.
select e.revocation as epoch, s.kind, s.value, s.off_epoch, s.on_epoch, s.reason, s.turned_by, s.turned_at
from deputize.epochs e
left join deputize.switches s
    on s.tenant = e.tenant and e.revocation > $2 and (s.on_epoch is null or s.on_epoch > e.revocation - 1000)
where e.tenant = $1;

-- name: turn_off_switch
-- The row lock on the epoch is held until commit, so epochs become visible in order. A switch that is off already
-- stays as it is but for a reason that it lacked, and the epoch is raised, so that every gateway reads again.
with raised as (
    update deputize.epochs set revocation = revocation + 1 where tenant = $1 returning revocation
), noted as (
    insert into deputize.switches (tenant, kind, value, off_epoch, reason, turned_by)
    select $1, $2, $3, raised.revocation, $4, $5 from raised
    where not exists (select from deputize.switches
                      where tenant = $1 and kind = $2 and value = $3 and on_epoch is null)
), explained as (
    update deputize.switches set reason = $4
    where tenant = $1 and kind = $2 and value = $3 and on_epoch is null and reason = '' and $4 <> ''
)
select revocation from raised;

-- name: turn_on_switch
with raised as (
    update deputize.epochs set revocation = revocation + 1 where tenant = $1 returning revocation
), turned as (
    update deputize.switches set on_epoch = raised.revocation from raised
    where tenant = $1 and kind = $2 and value = $3 and on_epoch is null
)
select revocation from raised;
