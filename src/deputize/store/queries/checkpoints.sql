-- Checkpoints of runs: runs/checkpoint_writer.py and lifecycle/durable/checkpointing.py.

-- name: insert_checkpoint
-- Only the owner may save. The call row is locked meanwhile, so that a takeover comes either before or after. Sent
-- again after a lost acknowledgement, it replaces its own row.
with owner as (
    select 1 from deputize.calls k
    where k.tenant = $1 and k.id = $2 and k.owner_epoch = $4 and k.state in ('running', 'unknown')
    for share
)
insert into deputize.checkpoints (tenant, call_id, seq, epoch, kind, name, parent, ciphertext)
select $1, $2, $3, $4, $5, $6, $7, $8 from owner
on conflict (tenant, call_id, seq) do update
set kind = excluded.kind, name = excluded.name, parent = excluded.parent, ciphertext = excluded.ciphertext, saved_at = now()
where checkpoints.epoch = excluded.epoch
returning seq;

-- name: prune_checkpoints
-- Keep the last three micro and the last ten macro checkpoints, the last of each name, the newest two of any kind,
-- those that any of these are differences to, and those the owner may still write differences to.
with ranked as (
    select c.seq, c.parent, c.kind,
           row_number() over (partition by c.kind, c.name order by c.seq desc) as place,
           row_number() over (order by c.seq desc) as age
    from deputize.checkpoints c where c.tenant = $1 and c.call_id = $2
), kept as (
    select seq, parent from ranked
    where age <= 2 or place <= case kind when 'micro' then 3 when 'macro' then 10 else 1 end
)
delete from deputize.checkpoints c
where c.tenant = $1 and c.call_id = $2
  and not exists (select from kept where kept.seq = c.seq or kept.parent = c.seq)
  and c.seq <> all($3::integer[]);

-- name: list_checkpoints
-- Newest first, without the states.
select c.seq, c.epoch, c.kind, c.name, c.parent, c.saved_at
from deputize.checkpoints c where c.tenant = $1 and c.call_id = $2 order by c.seq desc;

-- name: load_checkpoint
select c.seq, c.epoch, c.kind, c.name, c.parent, c.ciphertext
from deputize.checkpoints c where c.tenant = $1 and c.call_id = $2 and c.seq = $3;

-- name: delete_checkpoints_after
-- The run is rolled back, so nothing that was saved later may be resumed from.
delete from deputize.checkpoints c where c.tenant = $1 and c.call_id = $2 and c.seq > $3;

-- name: lock_run_to_roll_back
-- Locked, so that the run is not begun, ended or saved while it is rolled back.
select k.state, k.owner_epoch, k.caller_user, k.caller_agent, k.tool, k.version, k.mutation_class
from deputize.calls k
where k.tenant = $1 and k.id = $2
  and exists (select from deputize.runs r where r.tenant = k.tenant and r.id = k.id)
for update of k;

-- name: requeue_run
select deputize.requeue_run(p_tenant => $1, p_call_id => $2, p_epoch => $3, p_from_states => $4);

-- name: delete_checkpoints_of_ended_calls
-- Delete checkpoints of calls that have ended for good: named ones after so many days, the others after an hour.
delete from deputize.checkpoints c
using deputize.calls k
where k.tenant = c.tenant and k.id = c.call_id
  and k.state not in ('queued', 'running', 'unknown') and not deputize.is_call_held(k.tenant, k.id, k.caller_user)
  and k.ended_at < now() - case c.kind when 'named' then make_interval(days => $1) else interval '1 hour' end
  and (k.ended_at < now() - make_interval(days => $1) or not exists (
      select from deputize.checkpoints d
      where d.tenant = c.tenant and d.call_id = c.call_id and d.parent = c.seq and d.kind = 'named'));
