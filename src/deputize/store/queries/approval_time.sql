-- Approval requests over time, and notifications: operations/approvals/escalation.py and notifications/.

-- name: take_due_approvals
select * from deputize.lock_due_approvals(p_limit => $1);

-- name: escalate_approvals
select deputize.advance_approvals(
    approvals_tenant => $1, approvals_id => $2, approvals_level => $3,
    groups_tenant => $4, groups_id => $5, groups_name => $6,
    p_reminder_seconds => $7, p_max_reminders => $8, p_pause_seconds => $9);

-- name: load_traces
select k.tenant, k.id, k.trace, k.session from unnest($1::text[], $2::uuid[]) as c(tenant, id)
join deputize.calls k on k.tenant = c.tenant and k.id = c.id;

-- name: insert_audit_entries
insert into deputize.audit_entries (tenant, id, call_id, entry)
select * from unnest($1::text[], $2::uuid[], $3::uuid[], $4::bytea[]);

-- name: expire_approval_request
select ended as call_id from deputize.end_unstarted_calls(
    tenants => $1, p_approval_state => 'expired', p_resolved_by => '', p_reason => $2,
    ends_tenant => $3, ends_call_id => $4, ends_epoch => $5, ends_state => $6, ends_error => $7, ends_ciphertext => $8,
    ends_entry_id => $9, ends_entry => $10) as ended;

-- name: count_pending_approvals
-- Counts all approval requests that wait, by tool and group, so it is run seldom.
select a.tool, g.grp, count(*) as calls
from deputize.approval_groups g join deputize.approvals a on a.tenant = g.tenant and a.id = g.id
group by a.tool, g.grp order by calls desc limit $1;

-- name: list_groups_to_notify
-- List the groups with a due notice, the longest waiting first. The recursion takes one index step per group.
with recursive waiting as (
    (select n.tenant, n.grp from deputize.notices n order by n.tenant, n.grp limit 1)
    union all
    select n.tenant, n.grp from waiting w cross join lateral (
        select o.tenant, o.grp from deputize.notices o where (o.tenant, o.grp) > (w.tenant, w.grp)
        order by o.tenant, o.grp limit 1) as n
)
select w.tenant, w.grp from waiting w cross join lateral (
    select n.due_at from deputize.notices n where n.tenant = w.tenant and n.grp = w.grp order by n.due_at limit 1) as first
where first.due_at <= now() order by first.due_at limit $1;

-- name: delete_notices
-- Delete due notices of a group without a receiver; its members look for themselves.
delete from deputize.notices n using (
    select tenant, id from deputize.notices where tenant = $1 and grp = $2 and due_at <= now()
    order by due_at limit $3 for update skip locked) as few
where n.tenant = few.tenant and n.id = few.id;

-- name: write_notifications
select deputize.write_notifications(
    p_tenant => $1, p_group => $2, p_receivers => $3, p_max_per_window => $4, p_window_seconds => $5);

-- name: take_due_notifications
-- Take some due notifications and postpone them while this process sends them. If it dies, another sends them then.
with due as (
    select tenant, id from deputize.notifications where due_at <= now() order by due_at limit $1 for update skip locked
)
update deputize.notifications l set tries = l.tries + 1, due_at = now() + make_interval(secs => $2)
from due where l.tenant = due.tenant and l.id = due.id
returning l.tenant, l.id, l.grp, l.receiver, l.approval_id, l.kind, l.tries, l.created_at;

-- name: load_notification_content
select a.state, a.tool, a.opened_at, a.expires_at, k.caller_user, k.caller_agent
from deputize.approvals a left join deputize.calls k on k.tenant = a.tenant and k.id = a.call_id
where a.tenant = $1 and a.id = $2;

-- name: summarize_pending_approvals
-- Count what waits for a group by tool, among its newest requests only.
select a.tool, count(*) as calls, min(a.expires_at) as first_ends
from (select g.id from deputize.approval_groups g where g.tenant = $1 and g.grp = $2 order by g.id desc limit $3) as g
join deputize.approvals a on a.tenant = $1 and a.id = g.id and a.state = 'open'
group by a.tool order by calls desc, a.tool;

-- name: delete_notification
delete from deputize.notifications where tenant = $1 and id = $2;

-- name: postpone_notification
update deputize.notifications set due_at = now() + make_interval(secs => $3), problem = $4 where tenant = $1 and id = $2;

-- name: delete_old_notification_windows
delete from deputize.notification_windows where window_ends < now() - interval '1 day';
