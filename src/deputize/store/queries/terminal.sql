-- Approval requests for the terminal of a development gateway: operations/approvals/terminal_decisions.py.

-- name: list_open_approval_requests
-- Of all tenants, newest first: a development gateway shows their codes when it starts.
select a.tenant, a.id, a.binding, a.tool, k.caller_user
from deputize.approvals a
join deputize.calls k on k.tenant = a.tenant and k.id = a.call_id
where a.state = 'open' and a.expires_at > now()
order by a.id desc
limit $1;
