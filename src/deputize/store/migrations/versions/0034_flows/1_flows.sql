-- The call of the flow that this call is a step of.
alter table deputize.calls add column flow_id uuid;

-- Which calls a flow has made is sealed with it: paths of steps and ids of calls, refusals, and joins.
-- squawk-ignore ban-drop-constraint
alter table deputize.sealed_payloads drop constraint sealed_payloads_kind_check;
alter table deputize.sealed_payloads add constraint sealed_payloads_kind_check
    check (kind in ('input', 'outcome', 'input_responses', 'flow')) not valid;

create function deputize.wake_flow() returns trigger
    language plpgsql security definer
    set search_path to 'pg_catalog'
    as $$
begin
    perform deputize.reschedule_run(new.tenant, new.flow_id, 0, false);
    return null;
end $$;
revoke all on function deputize.wake_flow from public;
comment on function deputize.wake_flow is
    'Trigger: wake the flow of a step that ended, in the transaction that ends it, so that no end is missed.';

create trigger calls_wake_flow after update of state on deputize.calls for each row
    when (new.flow_id is not null and new.ended_at is not null and new.state <> old.state)
    execute function deputize.wake_flow();
