-- Of the function before it, this one also refuses an entry that is not signed.
create or replace function deputize.expire_entries(
    p_tenant text, p_days integer, p_first_index bigint, p_end_index bigint, p_entry_id uuid, p_entry bytea
) returns boolean
    language plpgsql security definer
    set search_path to 'pg_catalog'
    as $$
begin
    -- What the log's keys did not sign makes every later walk over the log fail. The previous release does not sign.
    if position('"signatures":['::bytea in p_entry) = 0 then
        return false;
    end if;
    perform deputize.lock_legal_holds(false);
    perform pg_advisory_xact_lock(hashtextextended('deputize expiry ' || p_tenant, 0));
    perform from deputize.plan_expiry(p_tenant, p_days, (p_end_index - p_first_index)::integer) as p
    where p.first_index = p_first_index and p.end_index = p_end_index;
    if not found then
        return false;
    end if;
    insert into deputize.audit_entries (tenant, id, call_id, entry, salt) values (p_tenant, p_entry_id, null, p_entry, null);
    insert into deputize.log_expiries (tenant, end_index, entry_id) values (p_tenant, p_end_index, p_entry_id);
    delete from deputize.audit_entries e using deputize.log_leaves l
    where l.tenant = p_tenant and l.leaf_index >= p_first_index and l.leaf_index < p_end_index
      and e.tenant = l.tenant and e.id = l.entry_id;
    return true;
end $$;
comment on function deputize.expire_entries is
    'Delete the entries that plan_expiry found, and write the signed entry that says so, in one transaction. Their hashes stay. False if the plan has changed meanwhile, or the entry is not signed.';
