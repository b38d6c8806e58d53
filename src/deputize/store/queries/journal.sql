-- What writes did, and how they are taken back: lifecycle/recording/settlement.py, operations/undo/.

-- name: load_uncertain_effects
select number, flow_id, step, resource, op, scope, before_digest, after_digest, sealed, id, undoes
from deputize.journal
where tenant = $1 and call_id = $2 and certainty = 'uncertain'
order by id, number;

-- name: insert_abandoned_effect
-- Of a call whose process died. What it changed is not known, so it counts as anything in the tool's namespace.
insert into deputize.journal (tenant, id, number, call_id, caller_user, caller_agent, session, tool, version, resource, op,
    scope, certainty, compensation_class)
select k.tenant, $3, 0, k.id, k.caller_user, k.caller_agent, k.session, k.tool, k.version, split_part(k.tool, '.', 1),
    'update', '*', 'uncertain', 'irreversible'
from deputize.calls k
where k.tenant = $1 and k.id = $2 and k.mutation_class <> 'read'
on conflict do nothing;

-- name: delete_old_journal
select deputize.delete_old_journal(p_days => $1);
