-- Policies: govern/policy/force.py.

-- name: policy_versions
-- The tenant's policy epoch with the newest sets that were ever put, in one statement and so in one snapshot.
select e.policy as epoch, p.changed_epoch, p.digest, p.files, p.facts
from deputize.epochs e
left join lateral (
    select changed_epoch, digest, files, facts
    from deputize.policies
    where tenant = e.tenant and changed_epoch <= e.policy
    order by changed_epoch desc
    limit $2
) p on true
where e.tenant = $1;

-- name: policy_epoch
select policy from deputize.epochs where tenant = $1;

-- name: put_policies
-- The row lock on the epoch is held until commit, so epochs become visible in the order of their numbers.
with raised as (
    update deputize.epochs set policy = policy + 1 where tenant = $1 returning policy
), noted as (
    insert into deputize.policies (tenant, changed_epoch, digest, files, facts, put_by)
    select $1, raised.policy, $2, $3, $4, $5 from raised
)
select policy from raised;
