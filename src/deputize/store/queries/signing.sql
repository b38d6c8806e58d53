-- The keys this gateway signs with: govern/identity/signing.py.

-- name: signing_keys
-- The newest first; a retired key is published for as long as something it signed may live.
select kid, sealed, public_jwk, retired_at is null as in_use
from deputize.signing_keys
where tenant = $1 and (retired_at is null or retired_at > now() - make_interval(secs => $2))
order by created_at desc, kid;

-- name: one_maker
-- Two processes may both find no key; the second waits here for the first one's commit.
select pg_advisory_xact_lock(hashtextextended('deputize signing key ' || $1, 0));

-- name: add_signing_key
insert into deputize.signing_keys (tenant, kid, sealed, public_jwk)
select $1, $2, $3, $4
where not exists (select from deputize.signing_keys where tenant = $1 and retired_at is null);
