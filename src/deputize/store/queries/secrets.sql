-- Secrets of tools, sealed: govern/vault/local.py.

-- name: load_secret
select sealed from deputize.secrets where tenant = $1 and name = $2;

-- name: list_secrets
-- Without their values.
select name, updated_at, updated_by from deputize.secrets where tenant = $1 order by name;

-- name: upsert_secret
-- Returns true if the name is new: a row that was just inserted has no xmax.
insert into deputize.secrets (tenant, name, sealed, updated_by) values ($1, $2, $3, $4)
on conflict (tenant, name) do update
    set sealed = excluded.sealed, updated_at = now(), updated_by = excluded.updated_by
returning xmax = 0;

-- name: delete_secret
delete from deputize.secrets where tenant = $1 and name = $2 returning name;
