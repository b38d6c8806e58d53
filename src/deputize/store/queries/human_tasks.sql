-- Tasks for people: lifecycle/recording/human_tasks.py opens them, operations/admin/human_tasks.py resolves them. Approval
-- requests are rows of this table too, and have queries of their own.

-- name: open_human_task
-- Returns the id of the open task about the call: this one, or the one that it has already, which only a race writes.
with found as (
    select t.id from deputize.human_tasks t where t.tenant = $1 and t.call_id = $4 and t.kind = $3 and t.state = 'open'
), opened as (
    insert into deputize.human_tasks (tenant, id, kind, call_id, question, due_at)
    select $1, $2, $3, $4, $5, now() + make_interval(secs => $6) where not exists (select from found)
    on conflict (tenant, call_id, kind) where state = 'open' do update set kind = excluded.kind
    returning id
)
select id from found union all select id from opened;

-- name: list_human_tasks
-- Newest first, below a cursor, with the present state of their calls. Reads have no row in calls. Of some tools, or of
-- all.
select t.id, t.kind, t.call_id, t.state, t.question, t.due_at, t.opened_at, t.resolved_at, t.resolved_by, t.resolution,
       t.reason, k.state as call_state, k.tool, k.version, k.caller_user, k.caller_agent
from deputize.human_tasks t
left join deputize.calls k on k.tenant = t.tenant and k.id = t.call_id
where t.tenant = $1 and t.kind <> 'approval' and ($2::text is null or t.state = $2)
      and ($3::text is null or t.kind = $3) and ($4::uuid is null or t.id < $4)
      and ($6::text[] is null
           or coalesce(k.tool, convert_from(t.question, 'utf8')::jsonb #>> '{tool,name}') = any($6))
order by t.id desc
limit $5;

-- name: load_human_task
select t.id, t.kind, t.call_id, t.state, t.question, t.due_at, t.opened_at, t.resolved_at, t.resolved_by, t.resolution,
       t.reason, k.state as call_state, k.tool, k.version, k.caller_user, k.caller_agent
from deputize.human_tasks t
left join deputize.calls k on k.tenant = t.tenant and k.id = t.call_id
where t.tenant = $1 and t.id = $2 and t.kind <> 'approval'
      and ($3::text[] is null
           or coalesce(k.tool, convert_from(t.question, 'utf8')::jsonb #>> '{tool,name}') = any($3));

-- name: resolve_human_task
update deputize.human_tasks set state = 'resolved', resolved_at = now(), resolved_by = $3, resolution = $4, reason = $5
where tenant = $1 and id = $2 and state = 'open'
returning id;

-- name: count_undo_requests
-- About the calls of a user.
select count(*) from deputize.human_tasks t
join deputize.calls k on k.tenant = t.tenant and k.id = t.call_id
where t.tenant = $1 and t.kind = 'undo' and t.state = 'open' and t.due_at > now() and k.caller_user = $2;

-- name: expire_undo_request
-- That nobody answered in time; the next one is another task.
update deputize.human_tasks set state = 'expired', resolved_at = now()
where tenant = $1 and call_id = $2 and kind = 'undo' and state = 'open' and due_at <= now();

-- name: list_undo_requests
select t.id, t.call_id, t.opened_at, k.tool, k.version, k.caller_user, k.caller_agent
from deputize.human_tasks t
join deputize.calls k on k.tenant = t.tenant and k.id = t.call_id
where t.tenant = $1 and t.kind = 'undo' and t.state = 'open' and t.due_at > now()
  and ($2::text is null or k.caller_user = $2)
order by t.id desc
limit $3;

-- name: answer_undo_requests
update deputize.human_tasks set state = 'resolved', resolved_at = now(), resolved_by = $3, resolution = 'done', reason = ''
where tenant = $1 and call_id = any($2::uuid[]) and kind = 'undo' and state = 'open';
