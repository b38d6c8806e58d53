-- name: take_due
select * from deputize.due_approvals($1);

-- name: move
select deputize.move_approvals($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: end_asked
select deputize.end_asked($1, 'expired', '', $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- name: pending
-- What waits for whom; of everything, so it is asked for seldom.
select a.tool, g.grp, count(*) as calls
from deputize.approval_groups g join deputize.approvals a on a.tenant = g.tenant and a.id = g.id
group by a.tool, g.grp order by calls desc limit $1;

-- name: waiting_groups
-- Groups that somebody has to be told something, those who wait longest first: one step of the index for each.
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

-- name: drop_notices
-- Of a group that nobody named a receiver for: whoever is in it looks by themselves.
delete from deputize.notices n using (
    select tenant, id from deputize.notices where tenant = $1 and grp = $2 and due_at <= now()
    order by due_at limit $3 for update skip locked) as few
where n.tenant = few.tenant and n.id = few.id;

-- name: write_letters
select deputize.write_letters($1, $2, $3, $4, $5);

-- name: take_letters
-- Some that are due, put off while this process sends them: if it dies, another sends them then.
with due as (
    select tenant, id from deputize.letters where due_at <= now() order by due_at limit $1 for update skip locked
)
update deputize.letters l set tries = l.tries + 1, due_at = now() + make_interval(secs => $2)
from due where l.tenant = due.tenant and l.id = due.id
returning l.tenant, l.id, l.grp, l.receiver, l.ticket, l.kind, l.tries, l.created_at;

-- name: what_to_tell
select a.state, a.tool, a.opened_at, a.expires_at, k.caller_user, k.caller_agent
from deputize.approvals a left join deputize.calls k on k.tenant = a.tenant and k.id = a.call_id
where a.tenant = $1 and a.id = $2;

-- name: what_waits
-- What waits for a group, by tool, of so many of the newest at most.
select a.tool, count(*) as calls, min(a.expires_at) as first_ends
from (select g.id from deputize.approval_groups g where g.tenant = $1 and g.grp = $2 order by g.id desc limit $3) as g
join deputize.approvals a on a.tenant = $1 and a.id = g.id and a.state = 'open'
group by a.tool order by calls desc, a.tool;

-- name: end_letter
delete from deputize.letters where tenant = $1 and id = $2;

-- name: send_later
update deputize.letters set due_at = now() + make_interval(secs => $3), problem = $4 where tenant = $1 and id = $2;

-- name: forget_mailboxes
delete from deputize.mailboxes where window_ends < now() - interval '1 day';
