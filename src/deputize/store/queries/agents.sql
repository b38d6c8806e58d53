-- Agents: operations/audit/agents.py.

-- name: list_agents
-- By name, after a name. With a user ($3), only those of their delegations, limited as in list_grants, and those that
-- acted in the newest calls of a user ($6), whose chains the two separators ($7, $8) divide; else everyone who made a
-- call or was given a grant. Whom an agent acts for is read from the grants.
with visible as (
    select g.grantor, g.agents, g.not_after from deputize.grants g
    where g.tenant = $1 and cardinality(g.agents) > 0
      and ($3::text is null or g.grantor = $3 and cardinality(g.agents) > cardinality($4::text[])
           and g.agents[cardinality(g.agents) - cardinality($4) + 1:] = $4)
      and ($5::uuid is null or exists (
          with recursive line as (
              select g.id, g.parent
              union all
              select up.id, up.parent from line join deputize.grants up on up.tenant = $1 and up.id = line.parent
          )
          select from line where line.id = $5))
), granted as (
    -- The agents that the grant was made through are not the caller's to list.
    select agent as name, v.grantor, v.not_after from visible v
    cross join lateral unnest(v.agents[:cardinality(v.agents) - cardinality($4::text[])]) as agent
), named as (
    select name from granted
    union
    select unnest(string_to_array(split_part(k.caller_agent, $7, 1), $8)) from (
        select caller_agent from deputize.calls where tenant = $1 and caller_user = $6 order by id desc limit 1000
    ) as k where k.caller_agent <> ''
    union
    select substr(s.subject, length($2) + 1) from deputize.subjects s
    where $3::text is null and s.tenant = $1 and starts_with(s.subject, $2)
), page as (
    select n.name from named n where n.name collate "C" > $9 order by n.name collate "C" limit $10
)
select p.name, (select s.salt from deputize.subjects s where s.tenant = $1 and s.subject = $2 || p.name) as salt,
       coalesce((select array_agg(distinct g.grantor) from granted g where g.name = p.name), '{}') as users,
       (select count(*) from granted g where g.name = p.name and g.not_after > now()) as active_grants
from page p order by p.name collate "C";
