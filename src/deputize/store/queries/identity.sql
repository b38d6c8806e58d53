-- Revocations and primary issuers: govern/identity/revocations.py and primary_issuers.py.

-- name: load_primary_issuer
select issuer from deputize.primary_issuers where tenant = $1;

-- name: insert_primary_issuer
insert into deputize.primary_issuers (tenant, issuer) values ($1, $2) on conflict do nothing;

-- name: list_revocations_since
-- The epoch and everything revoked since a known one, in one statement and therefore in one snapshot.
select e.revocation as epoch, r.kind, r.value, r.changed_epoch, p.issuer as primary_issuer
from deputize.epochs e
left join deputize.primary_issuers p on p.tenant = e.tenant
left join deputize.revocations r on r.tenant = e.tenant and r.changed_epoch > $2
where e.tenant = $1;

-- name: insert_revocation
-- The row lock on the epoch is held until commit, so epochs become visible in order. Revoking again keeps the first
-- revocation but raises the epoch, so that every gateway reads again.
with raised as (
    update deputize.epochs set revocation = revocation + 1 where tenant = $1 returning revocation
), noted as (
    insert into deputize.revocations (tenant, kind, value, reason, revoked_by, changed_epoch)
    select $1, $2, $3, $4, $5, raised.revocation from raised
    on conflict do nothing
)
select revocation from raised;

-- name: list_revocations
-- Newest first, below the epoch of the last one that was listed. Each revocation has an epoch of its own.
select kind, value, reason, revoked_by, revoked_at, changed_epoch as epoch
from deputize.revocations
where tenant = $1 and ($2::bigint is null or changed_epoch < $2)
order by changed_epoch desc
limit $3;

-- name: list_subject_names
-- The names that begin with $2 (agents) or do not (users), up to a limit: of those who made a call or were given a grant.
select distinct name from (
    select s.subject as name from deputize.subjects s where s.tenant = $1 and starts_with(s.subject, $2) = $3
    union all
    select case when $3 then $2 || agent else g.grantor end from deputize.grants g
    left join lateral unnest(g.agents) as agent on $3 where g.tenant = $1 and (not $3 or agent is not null)
) as names order by name limit $4;

-- name: has_grant
select exists (select from deputize.grants where tenant = $1 and id::text = $2);

-- name: count_ended_grants
-- Those that a revocation would end: neither expired nor revoked already.
with recursive descendants as (
    select g.id from deputize.grants g where g.tenant = $1 and $2::text = 'grant' and g.id::text = $3::text
    union
    select g.id from descendants d join deputize.grants g on g.tenant = $1 and g.parent = d.id
)
select count(*) from deputize.grants g
left join deputize.primary_issuers p on p.tenant = g.tenant
-- As in list_grants.
cross join lateral (
    select array[g.grantor, 'issuer=' || p.issuer || ' ' || g.grantor,
                 case when g.grantor like 'issuer=%' then substr(g.grantor, strpos(g.grantor, ' ') + 1) end] as names
) n
where g.tenant = $1 and g.not_after > now()
  and case when $2 = 'grant' then g.id in (select id from descendants)
      else $3 = any(n.names) or $2 in ('agent', 'subject') and $3 = any(g.agents) end
  and not exists (
      with recursive line as (
          select g.id, g.parent
          union all
          select up.id, up.parent from line join deputize.grants up on up.tenant = $1 and up.id = line.parent
      )
      select from line
      join deputize.revocations r on r.tenant = $1 and r.kind in ('grant', 'token') and r.value = line.id::text
  )
  and not exists (
      select from deputize.revocations r
      where r.tenant = $1 and (r.kind in ('user', 'agent', 'subject') and r.value = any(n.names)
                               or r.kind in ('agent', 'subject') and r.value = any(g.agents))
  );
