-- Revocations: govern/identity/revocations.py.

-- name: revocations_since
-- The epoch and everything revoked since the one already known, in one statement and so in one snapshot.
select e.revocation as epoch, r.kind, r.value, r.changed_epoch
from deputize.epochs e
left join deputize.revocations r on r.tenant = e.tenant and r.changed_epoch > $2
where e.tenant = $1;

-- name: revoke
-- The row lock on the epoch is held until commit, so epochs become visible in the order of their numbers.
-- Revoking again changes nothing about the first time, but still raises the epoch: every gateway looks once more.
with raised as (
    update deputize.epochs set revocation = revocation + 1 where tenant = $1 returning revocation
), noted as (
    insert into deputize.revocations (tenant, kind, value, reason, revoked_by, changed_epoch)
    select $1, $2, $3, $4, $5, raised.revocation from raised
    on conflict do nothing
)
select revocation from raised;
