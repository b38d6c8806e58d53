-- Erasures of people: acts/erasure.py.

-- name: insert_erasure
insert into deputize.erasures (tenant, id, subject, names, pseudonym) values ($1, $2, $3, $4, $5);

-- name: revoke_grants_of_user
-- Each revocation has an epoch of its own.
with ended as (
    select g.id, row_number() over (order by g.id) as number from deputize.grants g
    where g.tenant = $1 and g.grantor = $2 and g.not_after > now()
      and not exists (select from deputize.revocations r where r.tenant = $1 and r.kind = 'grant' and r.value = g.id::text)
), raised as (
    update deputize.epochs set revocation = revocation + (select count(*) from ended)
    where tenant = $1 returning revocation
), noted as (
    insert into deputize.revocations (tenant, kind, value, reason, revoked_by, changed_epoch)
    select $1, 'grant', ended.id::text, $3, $4, raised.revocation - ended.number + 1 from raised, ended
)
select count(*) from ended;

-- name: list_linked_servers
select server from deputize.server_links where tenant = $1 and user_name = $2 order by server for update;

-- name: delete_sign_ins
delete from deputize.server_sign_ins where tenant = $1 and user_name = $2;

-- name: continue_erasure
select deputize.continue_erasure(p_tenant => $1, p_id => $2, p_limit => $3, p_grace_seconds => $4);

-- name: load_erasure
select id, requested_at, ended_at,
       (select count(*) from deputize.calls k where k.tenant = $1 and k.caller_user = e.subject
        and k.created_at <= e.requested_at) as calls_left
from deputize.erasures e where tenant = $1 and id = $2;

-- name: list_open_erasures
-- Those after a position first, then from the oldest on.
select tenant, id, requested_at from deputize.erasures where ended_at is null
order by (requested_at, id) <= ($2::timestamptz, $3::uuid), requested_at, id limit $1;
