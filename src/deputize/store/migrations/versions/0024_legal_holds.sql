create table deputize.legal_holds (
    tenant    text not null references deputize.tenants,
    id        uuid not null,
    kind      text not null,
    subject   text,
    pseudonym text,
    call_id   uuid,
    from_at   timestamptz,
    to_at     timestamptz,
    -- Ids of calls and entries begin with the time: those from the first one to before the other are in the period.
    first_id  uuid,
    before_id uuid,
    reason    text not null,
    placed_by text not null,
    placed_at timestamptz not null default clock_timestamp(),
    primary key (tenant, id),
    constraint legal_holds_name_one_thing check (
        (kind = 'subject') = (subject is not null) and (kind = 'subject') = (pseudonym is not null)
        and (kind = 'call') = (call_id is not null)
        and (kind = 'period') = (first_id is not null) and (kind = 'period') = (before_id is not null)
        and (kind = 'period') = (from_at is not null) and kind in ('subject', 'call', 'period')
        and (before_id is null or first_id < before_id)
    )
);
comment on table deputize.legal_holds is
    'What must not be erased or deleted, until the hold is removed: the data of a person, of a call or of a period.';
select deputize.secure_table('legal_holds', 'select, insert, delete');

create table deputize.log_expiries (
    tenant     text not null,
    end_index  bigint not null check (end_index > 0),
    entry_id   uuid not null,
    expired_at timestamptz not null default clock_timestamp(),
    primary key (tenant, end_index)
);
comment on table deputize.log_expiries is
    'How far each log has expired: the entries before end_index were deleted, and their hashes stay. entry_id says so in the log.';
select deputize.secure_table('log_expiries', 'select');

create function deputize.lock_legal_holds(p_exclusive boolean) returns void
    language sql set search_path = pg_catalog as $$
    select case when p_exclusive then pg_advisory_xact_lock(hashtextextended('deputize legal holds', 0))
           else pg_advisory_xact_lock_shared(hashtextextended('deputize legal holds', 0)) end
$$;
comment on function deputize.lock_legal_holds is
    'Keep holds from being placed while something is deleted, until the transaction ends; exclusively, to place one.';

create function deputize.is_call_held(p_tenant text, p_call_id uuid, p_user text) returns boolean
    language sql stable set search_path = pg_catalog as $$
    select exists (
        select from deputize.legal_holds h
        where h.tenant = p_tenant
          and (h.subject = p_user or h.call_id = p_call_id or p_call_id >= h.first_id and p_call_id < h.before_id))
$$;
comment on function deputize.is_call_held is 'Tell whether a legal hold covers a call.';

create function deputize.find_blocking_hold(p_tenant text, p_subject text, p_names text[], p_pseudonym text)
    returns uuid language plpgsql security definer set search_path = pg_catalog as $$
declare
    hold deputize.legal_holds;
    caller constant text := '"caller":["' || p_pseudonym || '"';
begin
    for hold in select * from deputize.legal_holds h where h.tenant = p_tenant order by h.kind = 'period', h.placed_at loop
        if hold.subject = p_subject or hold.subject = any (p_names) then
            return hold.id;
        elsif hold.call_id is not null and (
            exists (select from deputize.calls k
                    where k.tenant = p_tenant and k.id = hold.call_id and k.caller_user = p_subject)
            or exists (select from deputize.audit_entries e where e.tenant = p_tenant and e.call_id = hold.call_id
                       and position(convert_to(caller, 'UTF8') in e.entry) > 0)
        ) then
            return hold.id;
        elsif hold.kind = 'period' then
            if exists (select from deputize.calls k where k.tenant = p_tenant and k.caller_user = p_subject
                       and k.id >= hold.first_id and k.id < hold.before_id) then
                return hold.id;
            end if;
            -- A search that runs out of time answers with a row too: what is not known to be free is held.
            perform set_config('deputize.tenant', p_tenant, true);
            perform from deputize.search_audit(array['user=' || p_pseudonym],
                jsonb_build_array(jsonb_build_array(caller)), hold.first_id, hold.before_id, 1, 500);
            if found then
                return hold.id;
            end if;
        end if;
    end loop;
    return null;
end $$;
comment on function deputize.find_blocking_hold is
    'Find a legal hold that forbids to erase a person: of them, of a call of theirs, or of a period in which they acted.';

create or replace function deputize.continue_erasure(p_tenant text, p_id uuid, p_limit integer, p_grace_seconds integer)
    returns text language plpgsql security definer set search_path = pg_catalog as $$
declare
    erasure deputize.erasures;
    placeholder constant text := 'erased=' || p_id;
    batch uuid[];
    caller constant text := '"caller":["';
    last_id uuid;
begin
    perform deputize.lock_legal_holds(false);
    select * into erasure from deputize.erasures e where e.tenant = p_tenant and e.id = p_id for update skip locked;
    if not found then
        return 'waiting';
    elsif erasure.ended_at is not null then
        return 'done';
    elsif deputize.find_blocking_hold(p_tenant, erasure.subject, erasure.names, erasure.pseudonym) is not null then
        -- Placed after the erasure began: what is left stays until the hold is removed.
        return 'waiting';
    end if;
    select array_agg(c.id) into batch from (
        select k.id from deputize.calls k
        where k.tenant = p_tenant and k.caller_user = erasure.subject and k.created_at <= erasure.requested_at
          and k.ended_at is not null
          and not exists (select from deputize.reconciliations r where r.tenant = k.tenant and r.id = k.id)
          and not exists (select from deputize.tickets t where t.tenant = k.tenant and t.call_id = k.id and t.state = 'open')
        order by k.id limit p_limit for update of k
    ) as c;
    if batch is not null then
        perform deputize.erase_calls(p_tenant, batch, placeholder);
        return 'more';
    end if;
    update deputize.grants x set grantor = placeholder, task = null, constraints = null
    where x.tenant = p_tenant and x.id in (
        select g.id from deputize.grants g
        where g.tenant = p_tenant and g.grantor = erasure.subject and g.created_at <= erasure.requested_at limit p_limit
    );
    if found then
        return 'more';
    end if;
    perform deputize.erase_names(p_tenant, erasure.subject, erasure.names, placeholder);
    update deputize.legal_holds x set placed_by = placeholder, reason = ''
    where x.tenant = p_tenant and x.placed_by = erasure.subject;
    delete from deputize.observed_values x where x.tenant = p_tenant and x.subject = erasure.pseudonym;
    delete from deputize.results x where x.tenant = p_tenant and x.caller_user = erasure.subject;
    -- Other processes may use the pseudonym for a moment, and open calls of the person write more entries.
    if erasure.requested_at > clock_timestamp() - make_interval(secs => p_grace_seconds) or exists (
        select from deputize.calls k where k.tenant = p_tenant and k.caller_user = erasure.subject
          and k.created_at <= erasure.requested_at
    ) then
        return 'waiting';
    end if;
    with page as (
        select e.id, e.entry from deputize.audit_entries e
        where e.tenant = p_tenant and e.id > erasure.last_entry order by e.id limit p_limit
    ), matches as (
        select id, substring(convert_from(entry, 'UTF8') from '"decision":"([^"]+)"') as decision from page
        where position(convert_to(caller || erasure.pseudonym || '"', 'UTF8') in entry) > 0
    ), salts as (
        update deputize.audit_entries x set salt = null from matches m
        where x.tenant = p_tenant and x.id = m.id and x.salt is not null
    ), records as (
        delete from deputize.decisions x using matches m where x.tenant = p_tenant and x.id = m.decision
    )
    select (array_agg(id order by id desc))[1] into last_id from page;
    if last_id is not null then
        update deputize.erasures e set last_entry = last_id where e.tenant = p_tenant and e.id = p_id;
        return 'more';
    end if;
    -- A token of theirs that was refused meanwhile made them a subject again.
    delete from deputize.subjects s where s.tenant = p_tenant and s.subject = erasure.subject
      and not exists (select from deputize.calls k where k.tenant = p_tenant and k.caller_user = erasure.subject);
    update deputize.erasures e set subject = null, names = null, pseudonym = null, ended_at = clock_timestamp()
    where e.tenant = p_tenant and e.id = p_id;
    return 'done';
end $$;
comment on function deputize.continue_erasure is
    'Erase the next batch of a person''s data: more, done, or waiting for open calls, for other processes, for a legal hold, '
    'or because another process does it. It changes no entry of the audit log, only deletes the salts beside them.';

create or replace function deputize.delete_ended_grants(p_days integer, p_limit integer) returns integer
    language plpgsql security definer set search_path = pg_catalog as $$
declare
    deleted_count integer;
begin
    perform deputize.lock_legal_holds(false);
    -- No token of a grant, or of one made from it, is valid after the grant's end. Others are deleted before their parents.
    with ended as (
        select g.tenant, g.id from deputize.grants g
        where g.not_after < now() - make_interval(days => greatest(p_days, 1))
          and not exists (select from deputize.grants c where c.tenant = g.tenant and c.parent = g.id)
          and not exists (select from deputize.legal_holds h where h.tenant = g.tenant
                          and (h.subject = g.grantor or h.kind in ('period', 'call')))
        order by g.not_after limit p_limit for update skip locked
    ), forgotten_revocations as (
        delete from deputize.revocations r using ended e
        where r.tenant = e.tenant and r.kind in ('grant', 'token') and r.value = e.id::text
    ), deleted as (
        delete from deputize.grants g using ended e where g.tenant = e.tenant and g.id = e.id returning g.id
    )
    select count(*) into deleted_count from deleted;
    return deleted_count;
end $$;

create or replace function deputize.delete_old_decisions(p_days integer, p_limit integer) returns integer
    language plpgsql security definer set search_path = pg_catalog as $$
declare
    deleted_count integer;
begin
    perform deputize.lock_legal_holds(false);
    -- A process notes once a day that it relies on a record, to the day: a record may be two days newer than it says.
    -- Calls share records, so that a hold keeps all of its tenant.
    with old as (
        select d.tenant, d.id from deputize.decisions d
        where d.last_at < now() - make_interval(days => greatest(p_days, 1) + 2)
          and not exists (select from deputize.legal_holds h where h.tenant = d.tenant)
        order by d.last_at limit p_limit for update skip locked
    ), deleted as (
        delete from deputize.decisions d using old o where d.tenant = o.tenant and d.id = o.id returning d.id
    )
    select count(*) into deleted_count from deleted;
    return deleted_count;
end $$;

create or replace function deputize.delete_old_payloads(p_days integer) returns integer
    language plpgsql security definer set search_path = pg_catalog as $_$
declare
    part text;
    day date;
    first_id uuid;
    next_id uuid;
    truncated integer := 0;
    rows_left integer;
begin
    perform deputize.lock_legal_holds(false);
    for part, day in
        select c.relname, to_date(right(c.relname, 8), 'YYYYMMDD')
        from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'deputize.sealed_payloads'::regclass
          and to_date(right(c.relname, 8), 'YYYYMMDD') < (now() at time zone 'utc')::date - p_days
        order by 1
    loop
        execute format('select count(*) from (select from deputize.%I limit 1) as any_left', part) into rows_left;
        continue when rows_left = 0;
        first_id := deputize.first_uuid_of_day(day);
        next_id := deputize.first_uuid_of_day(day + 1);
        -- A day of which no call is open, lately ended or held is truncated; any other loses its rows one by one.
        if not exists (select from deputize.legal_holds)
            and not exists (select from deputize.calls k where k.id >= first_id and k.id < next_id
                            and (k.ended_at is null or k.ended_at > now() - make_interval(days => p_days))) then
            execute format('truncate deputize.%I', part);
            truncated := truncated + 1;
        else
            execute format('delete from deputize.%I s where not exists (
                select from deputize.calls k where k.tenant = s.tenant and k.id = s.id
                and (k.ended_at is null or k.ended_at > now() - make_interval(days => $1)
                     or deputize.is_call_held(k.tenant, k.id, k.caller_user)))', part) using p_days;
        end if;
    end loop;
    delete from deputize.runs r using (
        select o.tenant, o.id from deputize.runs o
        where o.id < deputize.first_uuid_of_day((now() at time zone 'utc')::date - p_days)
          and exists (select from deputize.calls k where k.tenant = o.tenant and k.id = o.id
                      and k.ended_at < now() - make_interval(days => p_days) and k.state <> 'unknown'
                      and not deputize.is_call_held(k.tenant, k.id, k.caller_user))
        order by o.id limit 100000) as old
    where r.tenant = old.tenant and r.id = old.id;
    -- A claim whose window is over means nothing: the next call with its key takes it anyway.
    delete from deputize.claims c using deputize.calls k
    where k.tenant = c.tenant and k.id = c.call_id and k.window_ends < now() - interval '1 day'
      and c.call_id < deputize.first_uuid_of_day((now() at time zone 'utc')::date - p_days);
    return truncated;
end $_$;

create function deputize.hash_entry(p_entry bytea) returns bytea language sql immutable strict parallel safe as $$
    select sha256('\x00'::bytea || case when octet_length(p_entry) <= 65535 then p_entry else convert_to(
        format('{"entry_sha256":"%s","entry_size":%s,"v":"large-entry/1"}', encode(sha256(p_entry), 'hex'),
               octet_length(p_entry)), 'UTF8') end)
$$;
comment on function deputize.hash_entry is 'Compute the hash of an entry as a leaf of its log, as evidence/log/leaf.py does.';

create function deputize.plan_expiry(p_tenant text, p_days integer, p_limit integer)
    returns table (first_index bigint, end_index bigint) language plpgsql
    security definer set search_path = pg_catalog as $$
declare
    -- Never less than a year, whatever a gateway is set to.
    cutoff constant timestamptz := now() - make_interval(days => greatest(p_days, 365));
    cutoff_id constant uuid := (lpad(to_hex((extract(epoch from cutoff) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;
begin
    select coalesce(max(x.end_index), 0) into first_index from deputize.log_expiries x where x.tenant = p_tenant;
    -- From the oldest entry on, up to the first that has to stay: one that is younger, not signed yet, or held, or one
    -- that is not what its leaf says: retention must not delete what shows that someone changed the database.
    select coalesce(min(l.leaf_index), first_index + p_limit) into end_index
    from deputize.log_leaves l left join deputize.audit_entries e on e.tenant = l.tenant and e.id = l.entry_id
    where l.tenant = p_tenant and l.leaf_index >= first_index and l.leaf_index < first_index + p_limit
      and (l.entry_id >= cutoff_id or e.id is null or l.hash is distinct from deputize.hash_entry(e.entry) or exists (
          select from deputize.legal_holds h where h.tenant = p_tenant and (
              h.call_id = e.call_id or l.entry_id >= h.first_id and l.entry_id < h.before_id
              or position(convert_to('"' || h.pseudonym || '"', 'UTF8') in e.entry) > 0
              or exists (select from deputize.calls k
                         where k.tenant = p_tenant and k.id = e.call_id and k.caller_user = h.subject))));
    end_index := least(end_index,
        coalesce((select max(l.leaf_index) + 1 from deputize.log_leaves l where l.tenant = p_tenant), 0),
        coalesce((select max(c.size) from deputize.log_checkpoints c where c.tenant = p_tenant), 0));
    if end_index > first_index then
        return next;
    end if;
end $$;
comment on function deputize.plan_expiry is
    'Find the next entries that may expire: the oldest of a log, without a gap, that are older than so many days, signed and '
    'not held. No row if there are none.';

create function deputize.expire_entries(
    p_tenant text, p_days integer, p_first_index bigint, p_end_index bigint, p_entry_id uuid, p_entry bytea
) returns boolean language plpgsql security definer set search_path = pg_catalog as $$
begin
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
    'Delete the entries that plan_expiry found, and write the entry that says so, in one transaction. Their hashes stay. '
    'False if the plan has changed meanwhile.';

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
grant execute on function deputize.search_audit, deputize.name_pseudonyms to deputize_reader;
revoke execute on function deputize.secure_table, deputize.erase_calls, deputize.erase_names from deputize_writer;
