-- The keys this gateway signs with: govern/identity/signing_keys.py.

-- name: list_signing_keys
-- Newest first. A retired key is published as long as a token it signed may be valid.
select kid, sealed, public_jwk, retired_at is null as in_use
from deputize.signing_keys
where tenant = $1 and (retired_at is null or retired_at > now() - make_interval(secs => $2))
order by created_at desc, kid;

-- name: lock_signing_key_creation
-- Two processes may both find no key; the second waits here for the first one's commit.
select pg_advisory_xact_lock(hashtextextended('deputize signing key ' || $1, 0));

-- name: insert_signing_key
insert into deputize.signing_keys (tenant, kid, sealed, public_jwk)
select $1, $2, $3, $4
where not exists (select from deputize.signing_keys where tenant = $1 and retired_at is null);

-- name: retire_signing_keys
update deputize.signing_keys set retired_at = now() where tenant = $1 and retired_at is null;

-- name: list_signing_key_states
select tenant, kid, created_at, retired_at, retired_at + make_interval(secs => $1) as verifies_until
from deputize.signing_keys
where retired_at is null or retired_at > now() - make_interval(secs => $1)
order by tenant, created_at desc, kid;
