-- Policies: govern/policy/active_policies.py.

-- name: load_policy_epoch
select policy from deputize.epochs where tenant = $1;

-- name: list_policies_since
-- The sets that became active after one epoch and up to another, newest first.
select changed_epoch, digest, files, facts
from deputize.policies
where tenant = $1 and changed_epoch > $2 and changed_epoch <= $3
order by changed_epoch desc
limit $4;

-- name: insert_policies
-- The row lock on the epoch is held until commit, so epochs become visible in order.
with raised as (
    update deputize.epochs set policy = policy + 1 where tenant = $1 returning policy
), noted as (
    insert into deputize.policies (tenant, changed_epoch, digest, files, facts, put_by)
    select $1, raised.policy, $2, $3, $4, $5 from raised
)
select policy from raised;
