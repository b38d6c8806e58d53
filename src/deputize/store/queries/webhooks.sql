-- name: take_due
-- Some deliveries that are due, put off while this process tries them: if it dies, another tries them then. A few of each
-- tenant behind the one that was served last, but for those that have enough under way: one step of the index for each.
with recursive whose as (
    (select tenant from deputize.deliveries where due_at is not null and tenant > $4 order by tenant limit 1)
    union all
    select (select d.tenant from deputize.deliveries d
            where d.due_at is not null and d.tenant > w.tenant order by d.tenant limit 1)
    from whose w where w.tenant is not null
), due as (
    select next.tenant, next.id from whose w cross join lateral (
        select d.tenant, d.id from deputize.deliveries d
        where d.tenant = w.tenant and d.due_at <= now() order by d.due_at limit $3 for update skip locked) as next
    where w.tenant <> all($5::text[])
    limit $1
)
update deputize.deliveries d
set attempts = d.attempts + 1, due_at = now() + make_interval(secs => $2)
from due where d.tenant = due.tenant and d.id = due.id
returning d.tenant, d.id, d.call_id, d.state, d.attempts, d.created_at;

-- name: what_to_tell
select c.asked, k.tool, k.version, k.tool_digest, k.session, k.error, k.trace, k.created_at, s.box
from deputize.callbacks c
join deputize.calls k on k.tenant = c.tenant and k.id = c.id
left join deputize.sealed s on s.tenant = k.tenant and s.id = k.id and s.kind = 'outcome'
where c.tenant = $1 and c.id = $2;

-- name: delivered
update deputize.deliveries set due_at = null, delivered_at = now(), dead_at = null, problem = null
where tenant = $1 and id = $2;

-- name: try_later
update deputize.deliveries set due_at = now() + make_interval(secs => $3), problem = $4
where tenant = $1 and id = $2 and delivered_at is null;

-- name: give_up
update deputize.deliveries set due_at = null, dead_at = now(), problem = $3
where tenant = $1 and id = $2 and delivered_at is null;

-- name: dead_letters
select d.id, d.call_id, d.state, d.attempts, d.problem, d.created_at, d.dead_at, c.asked
from deputize.deliveries d join deputize.callbacks c on c.tenant = d.tenant and c.id = d.call_id
where d.tenant = $1 and d.dead_at is not null
order by d.dead_at desc limit $2;

-- name: retry_dead
update deputize.deliveries set due_at = now(), dead_at = null, attempts = 0
where tenant = $1 and id = $2 and dead_at is not null
returning call_id;

-- name: forget_delivered
-- What was told or given up long ago, some at a time; and then where to tell it, of calls that are over and have nothing
-- left to be told.
delete from deputize.deliveries d using (
    select tenant, id from deputize.deliveries
    where coalesce(delivered_at, dead_at) < now() - make_interval(days => $1)
      and (delivered_at is not null or dead_at is not null)
    limit 10000) as old
where d.tenant = old.tenant and d.id = old.id;

-- name: forget_callbacks
delete from deputize.callbacks c
where exists (select from deputize.calls k where k.tenant = c.tenant and k.id = c.id and k.state <> 'unknown'
              and k.ended_at < now() - make_interval(days => $1))
  and not exists (select from deputize.deliveries d where d.tenant = c.tenant and d.call_id = c.id);
