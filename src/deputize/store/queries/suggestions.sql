-- Decisions of approvers, for suggesting permits: operations/admin/policy/suggestions.py.

-- name: list_decided_approval_requests
-- Requests with votes, newest first, between two ids, with their voters. Read through the votes, because there may
-- be many more requests without any.
with found as (
    select distinct v.id from deputize.votes v
    where v.tenant = $1 and v.id > $2 and v.id < $3
    order by v.id desc
    limit $4
)
select a.id, a.call_id, a.state, a.demands,
       array(select v.voter from deputize.votes v
             where v.tenant = a.tenant and v.id = a.id and v.approve = (a.state <> 'denied')
             order by v.voter) as people,
       exists (select from deputize.votes v where v.tenant = a.tenant and v.id = a.id and v.break_glass) as break_glass
from found f
join deputize.approvals a on a.tenant = $1 and a.id = f.id
order by a.id desc;

-- name: list_entries_of_calls
select a.call_id, a.entry from deputize.audit_entries a where a.tenant = $1 and a.call_id = any($2) order by a.id;
