-- Acquire the barriers of these tenants, shared, until the commit. A session that set deputize.barrier to 'try' does not
-- wait: where an administrative act holds a barrier, nothing is committed, and the error's detail lists those tenants.
create or replace function deputize.acquire_barrier_shared(tenants text[]) returns void
    language plpgsql
    as $$
declare
    closed text[];
begin
    if current_setting('deputize.barrier', true) is distinct from 'try' then
        -- Sorted, so that two batches never wait for each other in a circle.
        perform pg_advisory_xact_lock_shared(k)
        from (select distinct deputize.barrier_key(t) as k from unnest(tenants) as t order by 1) as keys;
        return;
    end if;
    select array_agg(each.t) into closed
    from (select distinct t from unnest(tenants) as t) as each
    where not pg_try_advisory_xact_lock_shared(deputize.barrier_key(each.t));
    if closed is not null then
        raise exception using errcode = 'lock_not_available', message = 'an administrative act holds the barrier',
            detail = array_to_json(closed)::text;
    end if;
end $$;

-- As every migration that changes functions does.
revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
revoke execute on function deputize.secure_table from deputize_writer;
