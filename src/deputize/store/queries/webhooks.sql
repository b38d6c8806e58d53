-- Deliveries of callbacks: operations/background/deliveries.py and acts/webhooks.py.

-- name: take_due_deliveries
-- Take some due deliveries and postpone them while this process tries them. If it dies, another tries them then. A
-- few of each tenant, beginning after the tenant served last and leaving out tenants with enough deliveries in
-- flight; and one of each user in the same way, so that no user keeps the others of a tenant waiting. The recursions
-- take one index step per tenant, and per user.
with recursive whose as (
    (select tenant from deputize.deliveries where due_at is not null and tenant > $4 order by tenant limit 1)
    union all
    select (select d.tenant from deputize.deliveries d
            where d.due_at is not null and d.tenant > w.tenant order by d.tenant limit 1)
    from whose w where w.tenant is not null
), due as (
    select next.tenant, next.id from whose w cross join lateral (
        with recursive users as (
            (select d.caller_user from deputize.deliveries d
             where d.tenant = w.tenant and d.due_at is not null and d.caller_user > coalesce(
                 (select l.last_user from unnest($6::text[], $7::text[]) as l(tenant, last_user)
                  where l.tenant = w.tenant), '')
                or d.tenant = w.tenant and d.due_at is not null and d.caller_user = '' and w.tenant <> all($6::text[])
             order by d.caller_user limit 1)
            union all
            select (select d.caller_user from deputize.deliveries d
                    where d.tenant = w.tenant and d.due_at is not null and d.caller_user > u.caller_user
                    order by d.caller_user limit 1)
            from users u where u.caller_user is not null
        )
        select own.tenant, own.id from users u cross join lateral (
            select d.tenant, d.id from deputize.deliveries d
            where d.tenant = w.tenant and d.caller_user = u.caller_user and d.due_at <= now()
            order by d.due_at limit 1 for update skip locked) as own
        where (w.tenant, u.caller_user) not in (
            select b.tenant, b.caller_user from unnest($8::text[], $9::text[]) as b(tenant, caller_user))
        limit $3) as next
    where w.tenant <> all($5::text[])
    limit $1
)
update deputize.deliveries d
set attempts = d.attempts + 1, due_at = now() + make_interval(secs => $2)
from due where d.tenant = due.tenant and d.id = due.id
returning d.tenant, d.id, d.caller_user, d.call_id, d.state, d.attempts, d.created_at;

-- name: load_delivery_content
select c.request, k.tool, k.version, k.tool_digest, k.session, k.error, k.trace, k.created_at, s.ciphertext,
       i.ciphertext as input
from deputize.callbacks c
join deputize.calls k on k.tenant = c.tenant and k.id = c.id
left join deputize.sealed_payloads s on s.tenant = k.tenant and s.id = k.id and s.kind = 'outcome'
left join deputize.sealed_payloads i on i.tenant = k.tenant and i.id = k.id and i.kind = 'input'
where c.tenant = $1 and c.id = $2;

-- name: mark_delivered
update deputize.deliveries set due_at = null, delivered_at = now(), dead_at = null, problem = null
where tenant = $1 and id = $2;

-- name: postpone_delivery
update deputize.deliveries set due_at = now() + make_interval(secs => $3), problem = $4
where tenant = $1 and id = $2 and delivered_at is null;

-- name: mark_delivery_dead
update deputize.deliveries set due_at = null, dead_at = now(), problem = $3
where tenant = $1 and id = $2 and delivered_at is null;

-- name: list_dead_letters
select d.id, d.call_id, d.state, d.attempts, d.problem, d.created_at, d.dead_at, c.request
from deputize.deliveries d join deputize.callbacks c on c.tenant = d.tenant and c.id = d.call_id
where d.tenant = $1 and d.dead_at is not null
order by d.dead_at desc limit $2;

-- name: retry_dead_letter
update deputize.deliveries set due_at = now(), dead_at = null, attempts = 0
where tenant = $1 and id = $2 and dead_at is not null
returning call_id;

-- name: delete_old_deliveries
-- Delivered or given up long ago, some at a time; lock_to_delete comes before, so that no hold is placed meanwhile.
delete from deputize.deliveries d using (
    select o.tenant, o.id from deputize.deliveries o
    where coalesce(o.delivered_at, o.dead_at) < now() - make_interval(days => $1)
      and (o.delivered_at is not null or o.dead_at is not null)
      and not deputize.is_call_held(o.tenant, o.call_id, (
          select k.caller_user from deputize.calls k where k.tenant = o.tenant and k.id = o.call_id))
    limit 10000) as old
where d.tenant = old.tenant and d.id = old.id;

-- name: delete_old_callbacks
-- Of calls that ended long ago and have no delivery left, some at a time; lock_to_delete comes before.
delete from deputize.callbacks c using (
    select o.tenant, o.id from deputize.callbacks o
    join deputize.calls k on k.tenant = o.tenant and k.id = o.id
    where k.state <> 'unknown' and k.ended_at < now() - make_interval(days => $1)
      and not exists (select from deputize.deliveries d where d.tenant = o.tenant and d.call_id = o.id)
      and not deputize.is_call_held(k.tenant, k.id, k.caller_user)
    limit 10000) as old
where c.tenant = old.tenant and c.id = old.id;
