-- People's accounts at MCP servers: lifecycle/servers/links.py and linking.py.

-- name: link
select sealed, asked, wanted, expires_at, renewed_at, broken from deputize.server_links
where tenant = $1 and server = $2 and user_name = $3;

-- name: lock_link
-- Whoever renews it holds it, so that of any number of gateways one does.
select sealed, asked, wanted, expires_at, renewed_at, broken from deputize.server_links
where tenant = $1 and server = $2 and user_name = $3
for update;

-- name: newest_links
-- Whose link a look at the server may carry.
select user_name from deputize.server_links
where tenant = $1 and server = $2 and broken is null
order by linked_at desc limit 20;

-- name: put_link
insert into deputize.server_links (tenant, server, user_name, sealed, asked, expires_at) values ($1, $2, $3, $4, $5, $6)
on conflict (tenant, server, user_name) do update
    set sealed = excluded.sealed, asked = excluded.asked, wanted = '{}', expires_at = excluded.expires_at,
        linked_at = now(), renewed_at = now(), broken = null;

-- name: renew_link
update deputize.server_links set sealed = $4, expires_at = $5, renewed_at = now()
where tenant = $1 and server = $2 and user_name = $3;

-- name: break_link
update deputize.server_links set broken = $4 where tenant = $1 and server = $2 and user_name = $3;

-- name: let_link_end
-- The next call renews it first.
update deputize.server_links set expires_at = now() where tenant = $1 and server = $2 and user_name = $3;

-- name: want_more
update deputize.server_links set wanted = $4 where tenant = $1 and server = $2 and user_name = $3;

-- name: delete_link
delete from deputize.server_links where tenant = $1 and server = $2 and user_name = $3 returning server;

-- name: links_of
select server, linked_at, asked, wanted, broken from deputize.server_links where tenant = $1 and user_name = $2;

-- name: begin_sign_in
-- What was begun before is begun anew.
insert into deputize.server_sign_ins (tenant, server, user_name, state_digest, sealed) values ($1, $2, $3, $4, $5)
on conflict (tenant, server, user_name) do update
    set state_digest = excluded.state_digest, sealed = excluded.sealed, begun_at = now();

-- name: take_sign_in
-- Once: whoever brings the same again finds nothing.
delete from deputize.server_sign_ins where tenant = $1 and user_name = $2 and state_digest = $3
returning server, sealed, begun_at > now() - make_interval(secs => $4) as in_time;

-- name: delete_sign_in
delete from deputize.server_sign_ins where tenant = $1 and server = $2 and user_name = $3;

-- name: client
select sealed from deputize.server_clients where tenant = $1 and server = $2 and issuer = $3;

-- name: put_client
insert into deputize.server_clients (tenant, server, issuer, sealed) values ($1, $2, $3, $4)
on conflict (tenant, server, issuer) do update set sealed = excluded.sealed, registered_at = now();

-- name: delete_client
delete from deputize.server_clients where tenant = $1 and server = $2 and issuer = $3;
