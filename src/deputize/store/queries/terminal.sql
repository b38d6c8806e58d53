-- name: open_tickets
-- Of every tenant, the newest first: a development gateway shows their codes when it starts.
select a.tenant, a.id, a.binding, a.tool, k.caller_user
from deputize.approvals a
join deputize.calls k on k.tenant = a.tenant and k.id = a.call_id
where a.state = 'open' and a.expires_at > now()
order by a.id desc
limit $1;
