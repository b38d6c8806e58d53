-- Reads that failed: store/commit_functions.py runs both statements in the one that commits their audit entries, so that
-- all are committed or none. A batch that is sent again changes nothing.

-- name: insert_calls
-- A call that has ended and owns no key. $1 is the process that answered it.
insert into deputize.calls (tenant, id, state, tool, version, tool_digest, mutation_class, caller_user, caller_agent,
    session, fingerprint, owner, deadline_at, ended_at, window_seconds, window_ends, error, trace)
select f.tenant, f.id, f.state, f.tool, f.version, f.digest, f.class, f.usr, f.agent, f.session, '', $1::uuid, now(), now(),
    0, now(), f.error, f.trace
from unnest($2::text[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
        $11::text[], $12::text[], $13::text[], $14::bytea[])
    as f(tenant, id, state, tool, version, digest, class, usr, agent, session, error, trace, ciphertext)
on conflict do nothing;

-- name: insert_outcomes
insert into deputize.sealed_payloads (tenant, id, kind, ciphertext)
select f.tenant, f.id, 'outcome', f.ciphertext
from unnest($2::text[], $3::uuid[], $14::bytea[]) as f(tenant, id, ciphertext)
on conflict do nothing;
