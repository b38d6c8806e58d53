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

-- name: list_policy_proposals
-- Those that can be confirmed: not expired, and made for the policies that are active.
select p.digest, p.base_epoch, p.files, p.proposed_by, p.proposed_at, p.expires_at
from deputize.policy_proposals p
join deputize.epochs e on e.tenant = p.tenant and e.policy = p.base_epoch
where p.tenant = $1 and p.expires_at > now() and ($2::text is null or p.digest = $2)
order by p.proposed_at desc;

-- name: insert_policy_proposal
-- What can no longer be confirmed goes at the same time; proposing it again is a new proposal. What is active already is
-- not proposed: another operator may have confirmed it a moment ago.
with outdated as (
    delete from deputize.policy_proposals p using deputize.epochs e
    where p.tenant = $1 and e.tenant = $1 and p.digest <> $2 and (p.expires_at <= now() or p.base_epoch <> e.policy)
)
insert into deputize.policy_proposals as p (tenant, digest, base_epoch, files, proposed_by, expires_at)
select $1, $2, e.policy, $3, $4, now() + make_interval(secs => $5) from deputize.epochs e
where e.tenant = $1 and not exists (
    select from deputize.policies a where a.tenant = $1 and a.changed_epoch = e.policy and a.digest = $2
)
on conflict (tenant, digest) do update
    set base_epoch = excluded.base_epoch, files = excluded.files, proposed_by = excluded.proposed_by,
        proposed_at = now(), expires_at = excluded.expires_at
returning p.digest, p.base_epoch, p.files, p.proposed_by, p.proposed_at, p.expires_at;

-- name: delete_policy_proposal
delete from deputize.policy_proposals where tenant = $1 and digest = $2;
