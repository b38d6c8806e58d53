-- Linked accounts at MCP servers: lifecycle/credentials/linked_accounts.py and operations/servers/account_links.py.

-- name: load_link
select sealed, requested_scopes, missing_scopes, expires_at, renewed_at, broken_reason
from deputize.server_links
where tenant = $1 and server = $2 and user_name = $3;

-- name: lock_link
-- Locked while it is renewed, so that one of any number of gateways renews it.
select sealed, requested_scopes, missing_scopes, expires_at, renewed_at, broken_reason
from deputize.server_links
where tenant = $1 and server = $2 and user_name = $3
for update;

-- name: list_newest_links
-- Whose accounts may be used to probe the server.
select user_name from deputize.server_links
where tenant = $1 and server = $2 and broken_reason is null
order by linked_at desc limit 20;

-- name: upsert_link
insert into deputize.server_links (tenant, server, user_name, sealed, requested_scopes, expires_at)
values ($1, $2, $3, $4, $5, $6)
on conflict (tenant, server, user_name) do update
    set sealed = excluded.sealed, requested_scopes = excluded.requested_scopes, missing_scopes = '{}',
        expires_at = excluded.expires_at, linked_at = now(), renewed_at = now(), broken_reason = null;

-- name: renew_link
update deputize.server_links set sealed = $4, expires_at = $5, renewed_at = now()
where tenant = $1 and server = $2 and user_name = $3;

-- name: mark_link_broken
update deputize.server_links set broken_reason = $4 where tenant = $1 and server = $2 and user_name = $3;

-- name: expire_link
-- The next call renews it first.
update deputize.server_links set expires_at = now() where tenant = $1 and server = $2 and user_name = $3;

-- name: set_missing_scopes
update deputize.server_links set missing_scopes = $4 where tenant = $1 and server = $2 and user_name = $3;

-- name: delete_link
delete from deputize.server_links where tenant = $1 and server = $2 and user_name = $3 returning sealed;

-- name: insert_revocation
insert into deputize.server_revocations (tenant, id, server, sealed) values ($1, $2, $3, $4);

-- name: take_revocation
-- Postponed before it is attempted; the pauses grow from one minute to six hours.
update deputize.server_revocations
set attempts = attempts + 1, due_at = now() + make_interval(secs => least(60 * power(4, attempts), 21600))
where tenant = $1 and id = $2 and due_at <= now()
returning tenant, id, server, sealed, attempts;

-- name: take_due_revocations
update deputize.server_revocations r
set attempts = attempts + 1, due_at = now() + make_interval(secs => least(60 * power(4, attempts), 21600))
from (
    select tenant, id from deputize.server_revocations
    where due_at <= now() order by due_at limit $1 for update skip locked
) due
where r.tenant = due.tenant and r.id = due.id
returning r.tenant, r.id, r.server, r.sealed, r.attempts;

-- name: delete_revocation
delete from deputize.server_revocations where tenant = $1 and id = $2 returning id;

-- name: list_links_of_user
select server, linked_at, requested_scopes, missing_scopes, broken_reason
from deputize.server_links where tenant = $1 and user_name = $2;

-- name: upsert_sign_in
-- Replaces a sign-in that was begun before.
insert into deputize.server_sign_ins (tenant, server, user_name, state_digest, sealed) values ($1, $2, $3, $4, $5)
on conflict (tenant, server, user_name) do update
    set state_digest = excluded.state_digest, sealed = excluded.sealed, begun_at = now();

-- name: take_sign_in
-- Deleted when it is read, so that it can be finished only once.
delete from deputize.server_sign_ins where tenant = $1 and user_name = $2 and state_digest = $3
returning server, sealed, begun_at > now() - make_interval(secs => $4) as in_time;

-- name: delete_sign_in
delete from deputize.server_sign_ins where tenant = $1 and server = $2 and user_name = $3;

-- name: load_client
select sealed from deputize.server_clients where tenant = $1 and server = $2 and issuer = $3;

-- name: upsert_client
insert into deputize.server_clients (tenant, server, issuer, sealed) values ($1, $2, $3, $4)
on conflict (tenant, server, issuer) do update set sealed = excluded.sealed, registered_at = now();

-- name: delete_client
delete from deputize.server_clients where tenant = $1 and server = $2 and issuer = $3;
