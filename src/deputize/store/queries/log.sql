-- The transparency logs of tenants: evidence/tenant_log/ and operations/background/log_sequencer.py.

-- name: inspect_sequencer
select owner = $1 and expires_at > now() as is_held, expires_at <= now() or owner is null as is_free,
       expires_at < now() + make_interval(secs => $2) as is_renewal_due,
       exists (select from deputize.log_queue) as has_queue, exists (select from deputize.log_backlogs) as has_backlog
from deputize.log_sequencer;

-- name: claim_sequencer
update deputize.log_sequencer
set owner = $1, epoch = epoch + 1, expires_at = now() + make_interval(secs => $2)
where expires_at <= now() or owner is null returning epoch;

-- name: renew_sequencer
-- Locks the row until the transaction ends, so that no other process takes over in the middle of it.
update deputize.log_sequencer set expires_at = clock_timestamp() + make_interval(secs => $3)
where owner = $1 and epoch = $2 returning true;

-- name: release_sequencer
update deputize.log_sequencer set owner = null, expires_at = now() where owner = $1;

-- name: take_queue
-- The oldest entries of each of some tenants, from a tenant on: many entries of one do not hold up the others.
with recursive tenants (tenant, number) as (
    (select q.tenant, 1 from deputize.log_queue q
     where q.tenant > $1 and q.tenant <> all ($4::text[]) order by q.tenant limit 1)
    union all
    select (select q.tenant from deputize.log_queue q
            where q.tenant > t.tenant and q.tenant <> all ($4::text[]) order by q.tenant limit 1), t.number + 1
    from tenants t where t.tenant is not null and t.number < $2
), taken as (
    select t.tenant, q.number from tenants t
    cross join lateral (
        select l.number from deputize.log_queue l where l.tenant = t.tenant order by l.number limit $3
    ) as q
    where t.tenant is not null
)
delete from deputize.log_queue q using taken t where q.tenant = t.tenant and q.number = t.number
returning q.tenant, q.number, q.entry_id;

-- name: hash_entries
-- Only of entries that have no leaf yet, in the order of the arrays. What is too large for a bundle gets a leaf that names its digest.
select a.tenant, a.id, octet_length(a.entry) as entry_size,
       case when octet_length(a.entry) <= $5 then sha256('\x00'::bytea || a.entry) end as leaf_hash,
       case when octet_length(a.entry) > $5 then sha256(a.entry) end as entry_digest
from unnest($1::text[], $2::uuid[]) with ordinality as taken (tenant, id, number)
join deputize.audit_entries a on a.tenant = taken.tenant and a.id = taken.id and a.id between $3 and $4
where not exists (select from deputize.log_leaves l where l.tenant = a.tenant and l.entry_id = a.id)
order by a.tenant, taken.number;

-- name: insert_leaves
insert into deputize.log_leaves (tenant, leaf_index, entry_id, hash)
select * from unnest($1::text[], $2::bigint[], $3::uuid[], $4::bytea[]);

-- name: insert_nodes
insert into deputize.log_nodes (tenant, level, node_index, hash)
select * from unnest($1::text[], $2::smallint[], $3::bigint[], $4::bytea[]);

-- name: insert_checkpoints
insert into deputize.log_checkpoints (tenant, size, root, note)
select * from unnest($1::text[], $2::bigint[], $3::bytea[], $4::bytea[]);

-- name: list_checkpoints
select size, note, signed_at from deputize.log_checkpoints where tenant = $1 and size > $2 order by size limit $3;

-- name: find_unlogged_entries
-- Of the next entries by id, those that are neither in the log nor queued for it, and the last that was looked at.
select coalesce(array_agg(e.id order by e.id) filter (where l.entry_id is null and q.entry_id is null), '{}') as ids,
       count(*) as entries, (array_agg(e.id order by e.id desc))[1] as last_id,
       exists (select from deputize.log_backlogs where tenant = $1) as has_backlog
from (select id from deputize.audit_entries where tenant = $1 and id > $2 order by id limit $3) as e
left join deputize.log_leaves l on l.tenant = $1 and l.entry_id = e.id
left join deputize.log_queue q on q.tenant = $1 and q.entry_id = e.id;

-- name: load_size
select coalesce(max(leaf_index) + 1, 0) from deputize.log_leaves where tenant = $1;

-- name: load_newest_checkpoint
select size, root, note, signed_at from deputize.log_checkpoints where tenant = $1 order by size desc limit 1;

-- name: load_newest_witnessed_checkpoint
select size, note from deputize.log_witnessed_checkpoints where tenant = $1 order by size desc limit 1;

-- name: insert_witnessed_checkpoint
insert into deputize.log_witnessed_checkpoints (tenant, size, note, cosignatures) values ($1, $2, $3, $4)
on conflict do nothing;

-- name: list_unwitnessed_logs
-- Tenants whose newest checkpoint is not witnessed, and for how long their oldest one has waited.
select t.tenant, extract(epoch from clock_timestamp() - c.signed_at)::float8 as seconds
from deputize.tenants t
cross join lateral (
    select coalesce(max(k.size), 0) as size from deputize.log_witnessed_checkpoints k where k.tenant = t.tenant
) as w
cross join lateral (
    select k.signed_at from deputize.log_checkpoints k where k.tenant = t.tenant and k.size > w.size
    order by k.size limit 1
) as c
order by t.tenant;

-- name: list_unsigned_logs
-- Tenants whose log has grown beyond its newest checkpoint.
select t.tenant from deputize.tenants t
where (select max(l.leaf_index) from deputize.log_leaves l where l.tenant = t.tenant)
    >= coalesce((select max(c.size) from deputize.log_checkpoints c where c.tenant = t.tenant), 0)
order by t.tenant;

-- name: load_tiles
select t.level, t.tile_index, string_agg(n.hash, ''::bytea order by n.number) as content
from unnest($2::int[], $3::bigint[]) as t (level, tile_index)
cross join lateral (
    select l.leaf_index as number, l.hash from deputize.log_leaves l
    where t.level = 0 and l.tenant = $1 and l.leaf_index >= t.tile_index * 256 and l.leaf_index < (t.tile_index + 1) * 256
    union all
    select d.node_index, d.hash from deputize.log_nodes d
    where t.level > 0 and d.tenant = $1 and d.level = t.level
      and d.node_index >= t.tile_index * 256 and d.node_index < (t.tile_index + 1) * 256
) as n
group by t.level, t.tile_index;

-- name: list_leaves
select leaf_index, entry_id, hash from deputize.log_leaves
where tenant = $1 and leaf_index >= $2 and leaf_index < $3 order by leaf_index;

-- name: load_entries
select id, entry from deputize.audit_entries where tenant = $1 and id = any ($2::uuid[]) and id between $3 and $4;

-- name: list_log_keys
-- Of each tenant, the newest first.
select tenant, key_id, verifier_key, sealed, signs_until, signs_until is null or signs_until > now() as signs
from deputize.log_keys where tenant = any ($1::text[]) order by tenant, created_at desc, key_id;

-- name: lock_log_key_creation
select pg_advisory_xact_lock(hashtextextended('deputize log key ' || $1, 0));

-- name: insert_first_log_key
insert into deputize.log_keys (tenant, key_id, verifier_key, sealed)
select $1, $2, $3, $4 where not exists (select from deputize.log_keys where tenant = $1);

-- name: load_backlog
select tenant, after_id from deputize.log_backlogs order by tenant limit 1;

-- name: enqueue_backlog
-- Returns how many entries were read, and the last of them.
with entries as (
    select id from deputize.audit_entries where tenant = $1 and id > $2 order by id limit $3
), queued as (
    insert into deputize.log_queue (tenant, entry_id)
    select $1, e.id from entries e
    where not exists (select from deputize.log_leaves l where l.tenant = $1 and l.entry_id = e.id)
      and not exists (select from deputize.log_queue q where q.tenant = $1 and q.entry_id = e.id)
    order by e.id
)
select count(*) as entries, (select e.id from entries e order by e.id desc limit 1) as last_id from entries;

-- name: advance_backlog
update deputize.log_backlogs set after_id = $2 where tenant = $1;

-- name: delete_backlog
delete from deputize.log_backlogs where tenant = $1;

-- name: find_leaf
select leaf_index from deputize.log_leaves where tenant = $1 and entry_id = $2;

-- name: retire_log_keys
-- They sign beside the new key for a while, so that those who know only the old one can go on verifying.
update deputize.log_keys set signs_until = now() + make_interval(secs => $2) where tenant = $1 and signs_until is null;

-- name: insert_log_key
insert into deputize.log_keys (tenant, key_id, verifier_key, sealed) values ($1, $2, $3, $4);

-- name: describe_log_keys
select verifier_key, created_at, signs_until, signs_until is null or signs_until > now() as signs
from deputize.log_keys where tenant = $1 order by created_at desc, key_id;

-- name: list_log_key_states
select tenant, key_id, verifier_key, signs_until, signs_until is null or signs_until > now() as signs
from deputize.log_keys order by tenant, created_at desc, key_id;

-- name: load_covering_checkpoint
-- The first that covers so many entries.
select note from deputize.log_checkpoints where tenant = $1 and size >= $2 order by size limit 1;
