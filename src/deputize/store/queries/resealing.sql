-- What is kept without end and encrypted with a tenant's key, to be encrypted again: store/resealing.py.
-- A ciphertext has the version of its key in the bytes 3 to 6. Rows that a gateway is writing are skipped: it writes
-- them with the newest version, or they are found again.

-- name: lock_secrets
select array[name] as key, name as seal_name, sealed from deputize.secrets
where tenant = $1 and substring(sealed from 3 for 4) <> $2
order by name limit $3 for no key update skip locked;

-- name: update_secrets
update deputize.secrets set sealed = $3 where tenant = $1 and name = ($2::text[])[1];

-- name: count_secrets
select count(*) from deputize.secrets where tenant = $1 and substring(sealed from 3 for 4) <> $2;

-- name: lock_server_links
select array[server, user_name] as key, server || ' ' || user_name as seal_name, sealed from deputize.server_links
where tenant = $1 and substring(sealed from 3 for 4) <> $2
order by server, user_name limit $3 for no key update skip locked;

-- name: update_server_links
update deputize.server_links set sealed = $3
where tenant = $1 and server = ($2::text[])[1] and user_name = ($2::text[])[2];

-- name: count_server_links
select count(*) from deputize.server_links where tenant = $1 and substring(sealed from 3 for 4) <> $2;

-- name: lock_server_clients
select array[server, issuer] as key, server as seal_name, sealed from deputize.server_clients
where tenant = $1 and substring(sealed from 3 for 4) <> $2
order by server, issuer limit $3 for no key update skip locked;

-- name: update_server_clients
update deputize.server_clients set sealed = $3
where tenant = $1 and server = ($2::text[])[1] and issuer = ($2::text[])[2];

-- name: count_server_clients
select count(*) from deputize.server_clients where tenant = $1 and substring(sealed from 3 for 4) <> $2;

-- name: lock_signing_keys
select array[kid] as key, kid as seal_name, sealed from deputize.signing_keys
where tenant = $1 and substring(sealed from 3 for 4) <> $2
order by kid limit $3 for no key update skip locked;

-- name: update_signing_keys
update deputize.signing_keys set sealed = $3 where tenant = $1 and kid = ($2::text[])[1];

-- name: count_signing_keys
select count(*) from deputize.signing_keys where tenant = $1 and substring(sealed from 3 for 4) <> $2;

-- name: lock_log_keys
select array[key_id] as key, key_id as seal_name, sealed from deputize.log_keys
where tenant = $1 and substring(sealed from 3 for 4) <> $2
order by key_id limit $3 for no key update skip locked;

-- name: update_log_keys
update deputize.log_keys set sealed = $3 where tenant = $1 and key_id = ($2::text[])[1];

-- name: count_log_keys
select count(*) from deputize.log_keys where tenant = $1 and substring(sealed from 3 for 4) <> $2;
