-- Sessions of programs: lifecycle/durable/code_sessions.py.

-- name: lock_caller_sessions
-- Two calls that begin sessions of one caller are counted one after the other.
select pg_advisory_xact_lock(
    hashtextextended('code sessions ' || k.tenant || ' ' || k.caller_user || ' ' || k.caller_agent, 0)
)
from deputize.calls k where k.tenant = $1 and k.id = $2;

-- name: count_caller_sessions
-- The sessions that this call's caller began after $3, which is an id of that time.
select count(*)
from deputize.calls own
join deputize.calls k on k.tenant = own.tenant and k.caller_user = own.caller_user and k.caller_agent = own.caller_agent
    and k.id > $3 and k.id <> own.id
join deputize.sealed_payloads s on s.tenant = k.tenant and s.id = k.id and s.kind = 'session' and s.ciphertext <> ''
where own.tenant = $1 and own.id = $2;

-- name: load_session
-- Lock a session, if the caller of this call began it.
select s.ciphertext
from deputize.calls own
join deputize.calls k on k.tenant = own.tenant and k.caller_user = own.caller_user and k.caller_agent = own.caller_agent
join deputize.sealed_payloads s on s.tenant = k.tenant and s.id = k.id and s.kind = 'session'
where own.tenant = $1 and own.id = $2 and k.id = $3
for update of s;

-- name: save_session
insert into deputize.sealed_payloads (tenant, id, kind, ciphertext) values ($1, $2, 'session', $3)
on conflict (tenant, id, kind) do update set ciphertext = excluded.ciphertext;

-- name: has_call_ended
select ended_at is not null from deputize.calls where tenant = $1 and id = $2;
