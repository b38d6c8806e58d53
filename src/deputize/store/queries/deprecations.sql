-- Deprecated versions: who uses them, and which reports are due. evidence/deprecated_uses.py and
-- operations/.

-- name: add_uses
insert into deputize.deprecated_uses (tenant, name, version, caller_user, caller_agent, day, calls, last_used_at)
select * from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::date[], $7::bigint[], $8::timestamptz[])
on conflict (tenant, name, version, caller_user, caller_agent, day) do update
set calls = deprecated_uses.calls + excluded.calls,
    last_used_at = greatest(deprecated_uses.last_used_at, excluded.last_used_at);

-- name: list_callers
-- Who called a version since a time, the last one first.
select caller_user, caller_agent, sum(calls)::bigint as calls, max(last_used_at) as last_used_at
from deputize.deprecated_uses
where tenant = $1 and name = $2 and version = $3 and last_used_at > $4
group by caller_user, caller_agent
order by max(last_used_at) desc, caller_user, caller_agent
limit $5;

-- name: load_last_use
select max(last_used_at) from deputize.deprecated_uses where tenant = $1 and name = $2 and version = $3;

-- name: take_due_reports
-- Deprecated versions whose report is due; another process does not take them too.
update deputize.tool_versions v set reported_at = $1
from (
    select tenant, name, version from deputize.tool_versions
    where state = 'deprecated' and reported_at <= $2 order by reported_at limit $3 for update skip locked
) as due
where v.tenant = due.tenant and v.name = due.name and v.version = due.version
returning v.tenant, v.name, v.version, v.removal_at;

-- name: count_uses
select count(distinct (caller_user, caller_agent)) as callers, coalesce(sum(calls), 0)::bigint as calls
from deputize.deprecated_uses
where tenant = $1 and name = $2 and version = $3 and last_used_at > $4;

-- name: delete_old_uses
delete from deputize.deprecated_uses where day < $1;
