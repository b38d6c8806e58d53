-- Results that are stored behind references: store/stored_results.py.

-- name: insert_result
-- The names of the agents are for the previous release, which compares them.
insert into deputize.results
    (tenant, reference, call_id, tool, caller_user, caller_agent, caller_agents, bytes, is_redacted, expires_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, clock_timestamp() + make_interval(secs => $10))
returning expires_at;

-- name: insert_result_chunks
insert into deputize.result_chunks (tenant, reference, number, sealed)
select $1, $2, $3 + place - 1, chunk from unnest($4::bytea[]) with ordinality as c (chunk, place);

-- name: complete_result
update deputize.results set sealed = $3 where tenant = $1 and reference = $2 and expires_at > clock_timestamp()
returning true;

-- name: load_result
-- One that is not complete cannot be read: its process is storing it still, or died.
select call_id, tool, caller_user, caller_agent, bytes, is_redacted, sealed, expires_at,
       expires_at <= clock_timestamp() as is_expired
from deputize.results where tenant = $1 and reference = $2 and sealed is not null;

-- name: load_result_chunk
select sealed from deputize.result_chunks where tenant = $1 and reference = $2 and number = $3;

-- name: delete_expired_results
-- Some at a time, with their chunks; what is being written is left for the next time.
with expired as (
    select r.tenant, r.reference from deputize.results r
    where r.expires_at < clock_timestamp() and not deputize.is_call_held(r.tenant, r.call_id, r.caller_user)
    order by r.expires_at limit $1 for update skip locked
), deleted as (
    delete from deputize.results r using expired e
    where r.tenant = e.tenant and r.reference = e.reference returning r.reference
)
select count(*) from deleted;
