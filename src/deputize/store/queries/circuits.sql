-- Circuit breakers of external services: execute/circuits/.

-- name: ensure_circuit
insert into deputize.circuit_breakers (tenant, service) values ($1, $2) on conflict do nothing;

-- name: lock_circuit
-- The time is that of after the wait for the lock.
select c.*, clock_timestamp() as now from deputize.circuit_breakers c where tenant = $1 and service = $2 for update;

-- name: save_circuit
update deputize.circuit_breakers
set state = $3, epoch = $4, changed_at = $5, reason = $6, failures = $7, success_threshold = $8, timeout_seconds = $9,
    half_open_max_calls = $10, successes = $11, trial_ids = $12, trial_ends = $13, updated_at = clock_timestamp()
where tenant = $1 and service = $2;

-- name: insert_transition
insert into deputize.circuit_transitions (tenant, id, service, epoch, from_state, to_state, changed_at, reason)
values ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: list_unclosed_circuits
-- Of every tenant; the newest of one that has very many.
select c.*, clock_timestamp() as now
from (
    select b.*, row_number() over (partition by b.tenant order by b.changed_at desc) as rank
    from deputize.circuit_breakers b where b.state <> 'closed'
) as c
where c.rank <= $1 limit $2;

-- name: store_pause
insert into deputize.circuit_breakers as c (tenant, service, paused_until)
values ($1, $2, clock_timestamp() + make_interval(secs => $3))
on conflict (tenant, service) do update
set paused_until = greatest(c.paused_until, excluded.paused_until), updated_at = clock_timestamp();

-- name: list_pauses
-- Of every tenant; the longest of one that has very many.
select p.tenant, p.service, extract(epoch from p.paused_until - clock_timestamp())::float8 as seconds
from (
    select b.*, row_number() over (partition by b.tenant order by b.paused_until desc) as rank
    from deputize.circuit_breakers b where b.paused_until > now()
) as p
where p.rank <= $1 limit $2;

-- name: list_circuits
-- The circuits of a tenant that are not closed, or have changed or counted failures lately, the newest first.
select service, state, changed_at, reason, cardinality(failures) as failures, timeout_seconds,
       changed_at + make_interval(secs => timeout_seconds) as retry_at, epoch
from deputize.circuit_breakers where tenant = $1 order by updated_at desc, service limit $2;

-- name: list_transitions
select service, from_state, to_state, changed_at, reason
from deputize.circuit_transitions where tenant = $1 order by id desc limit $2;

-- name: delete_idle_circuits
-- Circuits that have been closed and without failures for a day, and transitions past their retention.
with idle as (
    delete from deputize.circuit_breakers
    where (tenant, service) in (
        select tenant, service from deputize.circuit_breakers
        where state = 'closed' and updated_at < now() - interval '1 day' limit $2 for update skip locked
    )
)
delete from deputize.circuit_transitions
where (tenant, id) in (
    -- Without a lock: the gateway's login may delete transitions, and change none.
    select tenant, id from deputize.circuit_transitions where changed_at < now() - make_interval(days => $1) limit $2
);
