-- Epochs and the barrier: store/epoch_watcher.py and acts/act.py.

-- name: load_epochs
select registry, policy, revocation from deputize.epochs where tenant = $1;

-- name: load_epochs_of_tenants
-- For the poll that makes up for lost notifications; only tenants that this gateway serves.
select tenant, registry, policy, revocation from deputize.epochs where tenant = any($1);

-- name: lock_barrier_exclusive
-- For a transaction that changes authority, before it changes anything. Held until its commit is visible.
select pg_advisory_xact_lock(deputize.barrier_key($1));

-- name: lock_barrier_shared
-- For a transaction that must not be interleaved with a revocation. Every batch of calls holds it in the same way.
select deputize.acquire_barrier_shared(tenants => array[$1]);

-- name: load_time
-- A sign-in is recent only if both clocks, the gateway's and PostgreSQL's, agree.
select extract(epoch from now())::bigint;

-- name: notify_epoch_change
select pg_notify('deputize_epochs', $1);
