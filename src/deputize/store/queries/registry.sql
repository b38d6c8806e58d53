-- The registry: catalog/registry.py. Every change runs under the tenant's exclusive barrier lock, taken by the
-- caller.

-- name: list_versions_since
-- The epoch and every version changed since a known one, in one statement and therefore in one snapshot.
select e.registry as epoch, v.name, v.version, v.digest, v.contract, v.state, v.changed_epoch, v.before_epoch,
       v.deprecated_at, v.removal_at, v.successor, v.migration_guide
from deputize.epochs e
left join deputize.tool_versions v on v.tenant = e.tenant and v.changed_epoch > $2
where e.tenant = $1;

-- name: lock_version
-- Locked, in case a writer does not hold the barrier.
select digest, contract, state from deputize.tool_versions
where tenant = $1 and name = $2 and version = $3
for update;

-- name: list_versions_of_tool
select version, state from deputize.tool_versions where tenant = $1 and name = $2;

-- name: raise_registry_epoch
-- The row lock on the epoch is held until commit, so epochs become visible in order.
update deputize.epochs set registry = registry + 1 where tenant = $1 returning registry;

-- name: register_tool
insert into deputize.tools (tenant, name, outward_name) values ($1, $2, $3) on conflict (tenant, name) do nothing;

-- name: register_version
insert into deputize.tool_versions
    (tenant, name, version, digest, contract, state, registered_by, changed_epoch)
values ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: replace_version
-- In development only: an unreleased version is edited in place. It keeps its state.
update deputize.tool_versions set digest = $4, contract = $5, registered_by = $6,
    before_epoch = changed_epoch, changed_epoch = $7
where tenant = $1 and name = $2 and version = $3;

-- name: set_version_state
-- Only a version that is deprecated, or was retired after that, keeps its notice.
update deputize.tool_versions set state = $4, before_epoch = changed_epoch, changed_epoch = $5,
    deprecated_at = case when $4 in ('deprecated', 'retired') then deprecated_at end
where tenant = $1 and name = $2 and version = $3;

-- name: set_notice
update deputize.tool_versions set deprecated_at = $4, removal_at = $5, successor = $6, migration_guide = $7, reported_at = $4,
    before_epoch = changed_epoch, changed_epoch = $8
where tenant = $1 and name = $2 and version = $3;
