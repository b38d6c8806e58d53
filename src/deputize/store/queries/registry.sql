-- The registry: catalog/registry.py. Every change runs under the tenant's exclusive barrier lock, taken by the caller.

-- The epoch and every version changed since the one already known, in one statement and so in one snapshot.
-- name: versions_since
select e.registry as epoch, v.name, v.version, v.digest, v.contract, v.state, v.changed_epoch, v.before_epoch
from deputize.epochs e
left join deputize.tool_versions v on v.tenant = e.tenant and v.changed_epoch > $2
where e.tenant = $1;

-- What stands under one exact version, locked against a change by anybody who forgot the barrier.
-- name: version_for_update
select digest, contract, state from deputize.tool_versions
where tenant = $1 and name = $2 and version = $3
for update;

-- name: versions_of
select version, state from deputize.tool_versions where tenant = $1 and name = $2;

-- The row lock on the epoch is held until commit, so epochs become visible in the order of their numbers.
-- name: raise_registry_epoch
update deputize.epochs set registry = registry + 1 where tenant = $1 returning registry;

-- name: register_tool
insert into deputize.tools (tenant, name, outward_name) values ($1, $2, $3) on conflict (tenant, name) do nothing;

-- name: register_version
insert into deputize.tool_versions
    (tenant, name, version, digest, contract, state, registered_by, changed_epoch)
values ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: set_version_state
update deputize.tool_versions set state = $4, before_epoch = changed_epoch, changed_epoch = $5
where tenant = $1 and name = $2 and version = $3;
