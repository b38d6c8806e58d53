-- Pins and changes of MCP servers: operations/servers/. Pins change under the tenant's exclusive barrier lock, taken
-- by the caller.

-- name: list_pins
select item, digest, definition, tool, version, accepted_by, accepted_at from deputize.server_pins
where tenant = $1 and server = $2 order by item;

-- name: list_pins_of_other_servers
-- What the tenant's other servers offer, to find names that look alike.
select server, item, tool from deputize.server_pins where tenant = $1 and server <> $2 order by server, item;

-- name: list_resource_pins
-- Pins of what is not registered as a tool: instructions, resources, templates and prompts.
select server, item, digest from deputize.server_pins where tenant = $1 and tool is null;

-- name: list_resource_definitions
select item, digest, definition from deputize.server_pins where tenant = $1 and server = $2 and tool is null order by item;

-- name: upsert_pin
insert into deputize.server_pins (tenant, server, item, digest, definition, tool, version, accepted_by)
values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict (tenant, server, item) do update set digest = excluded.digest, definition = excluded.definition,
    tool = excluded.tool, version = excluded.version, accepted_by = excluded.accepted_by, accepted_at = now();

-- name: list_effects
select item, digest, effects, confirmed_at from deputize.server_effects where tenant = $1 and server = $2 order by item;

-- name: upsert_effects
insert into deputize.server_effects (tenant, server, item, digest, effects) values ($1, $2, $3, $4, $5)
on conflict (tenant, server, item) do update
    set digest = excluded.digest, effects = excluded.effects, confirmed_at = now();

-- name: delete_effects
delete from deputize.server_effects where tenant = $1 and server = $2 and item = $3;

-- name: delete_pin
delete from deputize.server_pins where tenant = $1 and server = $2 and item = $3;

-- name: list_active_changes
-- Changes that wait for review, and rejected ones that the server may still declare.
select item, digest, kind, flags, state from deputize.server_changes
where tenant = $1 and server = $2 and state in ('open', 'rejected');

-- name: check_server_known
-- Whether the server was ever probed.
select exists (select from deputize.server_pins where tenant = $1 and server = $2)
    or exists (select from deputize.server_changes where tenant = $1 and server = $2);

-- name: open_change
-- Returns a row only if this opened the change: one that waits already or was rejected is not opened again.
insert into deputize.server_changes as c (tenant, server, item, digest, definition, kind, flags)
values ($1, $2, $3, $4, $5, $6, $7)
on conflict (tenant, server, item, digest) do update set state = 'open', kind = excluded.kind, flags = excluded.flags,
    definition = excluded.definition, seen_at = now(), decided_by = null, decided_at = null, reason = null
where c.state in ('gone', 'accepted') or (c.state = 'open' and (c.kind <> excluded.kind or c.flags <> excluded.flags))
returning item;

-- name: mark_change_gone
-- The server declares something else now, or its pin again. The digest stays known; the definition is deleted,
-- because a server may declare another one at every probe.
update deputize.server_changes set state = 'gone', definition = null, flags = '[]'
where tenant = $1 and server = $2 and item = $3 and digest = $4 and state = 'open'
returning item;

-- name: load_change
select item, digest, definition, kind, flags, state from deputize.server_changes
where tenant = $1 and server = $2 and item = $3 and digest = $4;

-- name: lock_change
select item, digest, definition, kind, flags, state from deputize.server_changes
where tenant = $1 and server = $2 and item = $3 and digest = $4
for update;

-- name: decide_change
update deputize.server_changes set state = $5, decided_by = $6, decided_at = now(), reason = $7
where tenant = $1 and server = $2 and item = $3 and digest = $4;

-- name: list_changes
-- Each beside the pin it differs from.
select c.item, c.digest, c.definition, c.kind, c.flags, c.seen_at, c.state, c.decided_by, c.decided_at, c.reason,
       p.digest as pin, p.definition as pinned_definition, p.tool, p.version
from deputize.server_changes c
left join deputize.server_pins p on p.tenant = c.tenant and p.server = c.server and p.item = c.item
where c.tenant = $1 and c.server = $2 and ($3::text is null or c.state = $3)
order by c.item, c.seen_at desc limit $4;

-- name: count_tools_and_changes
-- How many tools of each server are pinned, and how many of its changes wait for review.
select server, sum(tools)::integer as tools, sum(waiting)::integer as waiting from (
    select server, count(*) filter (where item like 'tool:%') as tools, 0 as waiting
    from deputize.server_pins where tenant = $1 group by server
    union all
    select server, 0, count(*) from deputize.server_changes where tenant = $1 and state = 'open' group by server
) as each group by server;
