-- name: epochs_of_tenant
select registry, policy, revocation from deputize.epochs where tenant = $1;

-- name: epochs_of_all
-- For the poll that heals lost notifications: only tenants this gateway already serves.
select tenant, registry, policy, revocation from deputize.epochs where tenant = any($1);

-- name: close_barrier
-- Taken by whoever changes authority, before it changes anything; held until its commit is visible.
select pg_advisory_xact_lock(deputize.barrier_key($1));

-- name: hold_barrier
-- Taken by whoever adds something that a revocation must not come between; calls hold it in the same way.
select deputize.hold_barrier(array[$1]);

-- name: announce
select pg_notify('deputize_epochs', $1);
