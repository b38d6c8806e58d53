-- With the owner's rights, like the next: whoever sets the tenant that rows are shown of cannot hide entries from it.
create function deputize.require_hold_entry() returns trigger
    language plpgsql security definer
    set search_path to 'pg_catalog'
    as $$
declare
    hold constant deputize.legal_holds := case tg_op when 'DELETE' then old else new end;
    command constant text := case tg_op when 'DELETE' then 'remove_hold' else 'place_hold' end;
begin
    -- The tenant's barrier is closed, so that its entry is among the last.
    if not exists (
        select from (select q.entry_id from deputize.log_queue q where q.tenant = hold.tenant order by q.number desc limit 100) as q
        join deputize.audit_entries e on e.tenant = hold.tenant and e.id = q.entry_id
        where position(convert_to('"command":"' || command || '"', 'UTF8') in e.entry) > 0
          and position('"outcome":"succeeded"'::bytea in e.entry) > 0
          and position(convert_to('"subject":"hold=' || hold.id, 'UTF8') in e.entry) > 0
    ) then
        raise insufficient_privilege using message = 'a legal hold needs the audit entry of the act, in its transaction';
    end if;
    return null;
end $$;
revoke all on function deputize.require_hold_entry from public;
comment on function deputize.require_hold_entry is
    'Trigger: refuse to commit a legal hold that is placed or removed without its audit entry.';

create function deputize.require_leaf() returns trigger
    language plpgsql security definer
    set search_path to 'pg_catalog'
    as $$
begin
    if not exists (select from deputize.log_leaves l where l.tenant = old.tenant and l.entry_id = old.entry_id)
       and exists (select from deputize.audit_entries e where e.tenant = old.tenant and e.id = old.entry_id) then
        raise insufficient_privilege using message = 'an entry leaves the queue of its log only with its leaf';
    end if;
    return null;
end $$;
revoke all on function deputize.require_leaf from public;
comment on function deputize.require_leaf is
    'Trigger: refuse to commit the deletion of a queued entry that the log does not have.';

create constraint trigger legal_holds_require_entry after insert or delete on deputize.legal_holds
    deferrable initially deferred for each row
    when (not pg_has_role(current_user, 'deputize_owner', 'member')) execute function deputize.require_hold_entry();

create constraint trigger log_queue_require_leaf after delete on deputize.log_queue
    deferrable initially deferred for each row
    when (not pg_has_role(current_user, 'deputize_owner', 'member')) execute function deputize.require_leaf();
