-- Tenants, their data keys, and the salts behind pseudonyms: store/tenants.py, store/keys.py, store/subjects.py.

-- name: ensure_tenant
with made as (
    insert into deputize.tenants (tenant) values ($1) on conflict do nothing
)
insert into deputize.epochs (tenant) values ($1) on conflict do nothing;

-- name: tenant_keys
select version, wrapped from deputize.tenant_keys where tenant = $1 order by version;

-- name: add_first_tenant_key
-- The first key of a tenant. Two processes may both try; the one that loses waits for the winner's commit and reads it.
insert into deputize.tenant_keys (tenant, version, wrapped) values ($1, 1, $2) on conflict do nothing;

-- name: subject_salts
select subject, salt from deputize.subjects where tenant = $1 and subject = any($2::text[]);

-- name: add_subject_salts
-- Sorted, so that two processes meeting the same subjects never wait for each other in a circle.
insert into deputize.subjects (tenant, subject, salt)
select $1, asked.subject, asked.salt from unnest($2::text[], $3::bytea[]) as asked(subject, salt)
order by asked.subject
on conflict do nothing;

-- name: erase_subject
delete from deputize.subjects where tenant = $1 and subject = $2;
