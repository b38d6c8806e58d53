-- Users take turns with their callbacks, so a delivery says whose it is: empty in rows from before.
alter table deputize.deliveries add column caller_user text not null default '';

-- Trigger: schedule the callback of a call that ended. Beyond so many open deliveries of a user or of a tenant it is
-- given up at once, and an administrator can retry it.
create or replace function deputize.schedule_delivery() returns trigger
    language plpgsql
    as $$
declare
    problem text;
begin
    if exists (select from deputize.deliveries d
               where d.tenant = new.tenant and d.caller_user = new.caller_user and d.due_at is not null
               offset 999 limit 1) then
        problem := '1000 deliveries of this user are open already';
    elsif exists (select from deputize.deliveries d
                  where d.tenant = new.tenant and d.due_at is not null offset 9999 limit 1) then
        problem := '10000 deliveries of this tenant are open already';
    end if;
    insert into deputize.deliveries (tenant, call_id, state, caller_user, due_at, dead_at, problem)
    values (new.tenant, new.id, new.state, new.caller_user, case when problem is null then now() end,
            case when problem is not null then now() end, problem);
    return null;
end $$;
