-- Delegations: govern/identity/grants.py.

-- name: add_grant
-- A token may name a grant this database never made; then this one stands alone.
insert into deputize.grants
    (tenant, id, parent, grantor, agents, scopes, tools, ceiling, task, constraints, not_after)
select $1, $2, (select id from deputize.grants where tenant = $1 and id = $3), $4, $5, $6, $7, $8, $9, $10,
       to_timestamp($11::float8);

-- name: list_grants
-- Newest first, below a cursor. Of one user, and of whoever stands behind these agents; of everybody without a user.
-- A grant is revoked by its own id, which is its token's too, or by that of any it comes from.
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
       ) as revoked
from deputize.grants g
where g.tenant = $1
  and ($2::text is null or g.grantor = $2 and cardinality(g.agents) > cardinality($3::text[])
       and g.agents[cardinality(g.agents) - cardinality($3) + 1:] = $3)
  and ($4::uuid is null or g.id < $4)
  and ($5::uuid is null or g.id = $5)
order by g.id desc
limit $6;
