-- Delegations: govern/identity/grants.py.

-- name: insert_grant
-- A token may name a parent grant that is not in this database; then this grant has no parent.
insert into deputize.grants
    (tenant, id, parent, grantor, agents, scopes, tools, ceiling, task, constraints, not_after)
select $1, $2, (select id from deputize.grants where tenant = $1 and id = $3), $4, $5, $6, $7, $8, $9, $10,
       to_timestamp($11::float8);

-- name: insert_operator_token
-- The id is derived from the assertion, so a second use of it conflicts, in whichever gateway.
insert into deputize.grants (tenant, id, grantor, agents, scopes, not_after)
values ($1, $2, $3, '{}', $4, to_timestamp($5::float8)) on conflict (tenant, id) do nothing returning id;

-- name: list_grants
-- Newest first, below a cursor. Of one user and the agents behind it, or of all. A grant is revoked by its own id,
-- which is also its token's, by the id of any grant it descends from, or with its user or one of its agents.
select g.id, g.parent, g.grantor, g.agents, g.scopes, g.tools, g.ceiling, g.task, g.constraints, g.not_after,
       g.created_at, g.not_after <= now() as ended,
       exists (
           with recursive line as (
               select g.id, g.parent
               union all
               select up.id, up.parent from line
               join deputize.grants up on up.tenant = $1 and up.id = line.parent
           )
           select from line
           join deputize.revocations r on r.tenant = $1 and r.kind in ('grant', 'token') and r.value = line.id::text
       ) or exists (
           select from deputize.revocations r
           where r.tenant = $1 and (r.kind in ('user', 'agent', 'subject') and r.value = any(n.names)
                                    or r.kind in ('agent', 'subject') and r.value = any(g.agents))
       ) as revoked
from deputize.grants g
left join deputize.primary_issuers p on p.tenant = g.tenant
-- The names that revoke its user: as it is stored, with the primary issuer, and the bare name, which means every issuer.
cross join lateral (
    select array[g.grantor, 'issuer=' || p.issuer || ' ' || g.grantor,
                 case when g.grantor like 'issuer=%' then substr(g.grantor, strpos(g.grantor, ' ') + 1) end] as names
) n
where g.tenant = $1
  -- Tokens of operator clients have no agent.
  and cardinality(g.agents) > 0
  and ($2::text is null or g.grantor = $2 and cardinality(g.agents) > cardinality($3::text[])
       and g.agents[cardinality(g.agents) - cardinality($3) + 1:] = $3)
  and ($4::uuid is null or g.id < $4)
  and ($5::uuid is null or g.id = $5)
  and ($7::uuid is null or exists (
      with recursive line as (
          select g.id, g.parent
          union all
          select up.id, up.parent from line
          join deputize.grants up on up.tenant = $1 and up.id = line.parent
      )
      select from line where line.id = $7
  ))
order by g.id desc
limit $6;
