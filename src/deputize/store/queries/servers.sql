-- MCP servers: lifecycle/servers/. What is agreed to changes under the tenant's exclusive barrier lock, taken by the caller.

-- name: pins_of
select item, digest, definition, tool, version, accepted_by, accepted_at from deputize.server_pins
where tenant = $1 and server = $2 order by item;

-- What every server of the tenant offers, for telling look-alikes.
-- name: pins_of_others
select server, item from deputize.server_pins where tenant = $1 and server <> $2 order by server, item;

-- What is not registered, and so heard of nowhere else: instructions, resources, templates and prompts.
-- name: agreed_beside_tools
select server, item, digest from deputize.server_pins where tenant = $1 and tool is null;

-- name: said_beside_tools
select item, digest, definition from deputize.server_pins where tenant = $1 and server = $2 and tool is null order by item;

-- name: pin
insert into deputize.server_pins (tenant, server, item, digest, definition, tool, version, accepted_by)
values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict (tenant, server, item) do update set digest = excluded.digest, definition = excluded.definition,
    tool = excluded.tool, version = excluded.version, accepted_by = excluded.accepted_by, accepted_at = now();

-- name: unpin
delete from deputize.server_pins where tenant = $1 and server = $2 and item = $3;

-- Whatever is not over: what waits, and what was turned down and may still be what the server says.
-- name: changes_known
select item, digest, kind, flags, state from deputize.server_changes
where tenant = $1 and server = $2 and state in ('open', 'rejected');

-- Whether anybody ever looked at it.
-- name: was_seen
select exists (select from deputize.server_pins where tenant = $1 and server = $2)
    or exists (select from deputize.server_changes where tenant = $1 and server = $2);

-- Told only to whoever opened it: what waits already, or was turned down, is not opened again.
-- name: open_change
insert into deputize.server_changes as c (tenant, server, item, digest, definition, kind, flags)
values ($1, $2, $3, $4, $5, $6, $7)
on conflict (tenant, server, item, digest) do update set state = 'open', kind = excluded.kind, flags = excluded.flags,
    definition = excluded.definition, seen_at = now(), decided_by = null, decided_at = null, reason = null
where c.state in ('gone', 'accepted') or (c.state = 'open' and (c.kind <> excluded.kind or c.flags <> excluded.flags))
returning item;

-- The server says something else by now, or what was agreed to again. That it was said stays known, by its digest; what
-- it was does not, for a server may say something else at every look.
-- name: change_gone
update deputize.server_changes set state = 'gone', definition = null, flags = '[]'
where tenant = $1 and server = $2 and item = $3 and digest = $4 and state = 'open'
returning item;

-- name: change_for_update
select item, digest, definition, kind, flags, state from deputize.server_changes
where tenant = $1 and server = $2 and item = $3 and digest = $4
for update;

-- name: decide_change
update deputize.server_changes set state = $5, decided_by = $6, decided_at = now(), reason = $7
where tenant = $1 and server = $2 and item = $3 and digest = $4;

-- Each beside what was agreed to before it.
-- name: changes_of
select c.item, c.digest, c.definition, c.kind, c.flags, c.seen_at, c.state, c.decided_by, c.decided_at, c.reason,
       p.digest as pin, p.definition as agreed, p.tool, p.version
from deputize.server_changes c
left join deputize.server_pins p on p.tenant = c.tenant and p.server = c.server and p.item = c.item
where c.tenant = $1 and c.server = $2 and ($3::text is null or c.state = $3)
order by c.item, c.seen_at desc limit $4;

-- How many tools of each server are served, and how many changes wait.
-- name: counts
select server, sum(tools)::integer as tools, sum(waiting)::integer as waiting from (
    select server, count(*) filter (where item like 'tool:%') as tools, 0 as waiting
    from deputize.server_pins where tenant = $1 group by server
    union all
    select server, 0, count(*) from deputize.server_changes where tenant = $1 and state = 'open' group by server
) as each group by server;
