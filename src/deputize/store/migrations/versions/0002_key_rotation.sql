-- A new version of a tenant's key is known to every gateway before one seals with it; the id of the master key says what
-- a rotation of the master key has yet to wrap again. Rows of the previous release have none.
alter table deputize.tenant_keys
    add column active_from timestamptz not null default now(),
    add column master_id text;
grant update on deputize.tenant_keys to deputize_writer;
