-- Input responses to a server's questions: operations/calls/answers.py.

-- name: lock_input_requests
-- Lock the call, so that responses that arrive at once are stored one after the other.
select k.id from deputize.calls k where k.tenant = $1 and k.id = $2 and k.state = 'needs_input' for update;

-- name: load_input_responses
-- The responses stored so far, sealed.
select s.ciphertext from deputize.sealed_payloads s where s.tenant = $1 and s.id = $2 and s.kind = 'input_responses';

-- name: save_input_responses
insert into deputize.sealed_payloads (tenant, id, kind, ciphertext) values ($1, $2, 'input_responses', $3)
on conflict (tenant, id, kind) do update set ciphertext = excluded.ciphertext;

-- name: find_continuing_call
-- Find the call that answered the questions of another, by the key made from the other's id.
select c.call_id from deputize.claims c where c.tenant = $1 and c.scope = $2 and c.key = $3;
