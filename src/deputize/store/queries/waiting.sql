-- What waits for a person: operations/views/waiting.py.

-- name: list_waiting
-- Of each kind the newest ($4): open approval requests, of the tenant with $2, else those for the groups of a person; and
-- human tasks, of the tenant with $6, else the undos that their agents ($3) asked for. Changes of servers, too, with $6.
with asked as (
    (select a.id from deputize.approvals a
     where $2 and a.tenant = $1 and a.state = 'open' order by a.id desc limit $4)
    union
    select w.id from unnest($5::text[]) as g(grp)
    cross join lateral (
        select a.id from deputize.approval_groups a where a.tenant = $1 and a.grp = g.grp order by a.id desc limit $4
    ) as w
    where not $2
), newest as (
    select id from asked order by id desc limit $4
)
(select 'approval' as kind, a.id::text as id, a.call_id, a.tool, k.version, k.caller_user, k.caller_agent, a.opened_at,
        a.expires_at, null::bytea as question, 0::bigint as changes
 from newest n
 join deputize.approvals a on a.tenant = $1 and a.id = n.id
 join deputize.calls k on k.tenant = a.tenant and k.id = a.call_id
 order by a.id desc)
union all
(select t.kind, t.id::text, t.call_id, k.tool, k.version, k.caller_user, k.caller_agent, t.opened_at, t.due_at, t.question, 0
 from deputize.human_tasks t
 left join deputize.calls k on k.tenant = t.tenant and k.id = t.call_id
 where t.tenant = $1 and t.state = 'open' and t.kind <> 'approval'
   and (t.kind <> 'undo' or k.id is not null and t.due_at > now()) and ($6 or t.kind = 'undo' and k.caller_user = $3)
 order by t.id desc limit $4)
union all
(select 'server', server, null, null, null, null, null, null, null, null, count(*)
 from deputize.server_changes
 where $6 and tenant = $1 and state = 'open'
 group by server);
