-- Functions that only continue_erasure calls: no release calls them itself.
drop function deputize.erase_names(text, text, text[], text);
drop function deputize.erase_cost_tasks(text, text);

create function deputize.erase_names(p_tenant text, p_subject text, p_names text[], p_placeholder text, p_limit integer)
    returns boolean language plpgsql security definer set search_path = pg_catalog as $_$
declare
    part record;
    rows tid[];
    is_more boolean := false;
begin
    for part in values
        ('votes', 'voter', true), ('tickets', 'resolved_by', true), ('secrets', 'updated_by', false),
        ('policies', 'put_by', false), ('tool_versions', 'registered_by', false), ('deprecated_uses', 'caller_user', false),
        ('server_changes', 'decided_by', true), ('server_pins', 'accepted_by', false), ('switches', 'turned_by', true),
        ('revocations', 'revoked_by', true), ('legal_holds', 'placed_by', true)
    loop
        -- Locked first, and changed by a second statement: a row that someone else is changing keeps its place then.
        execute format('select array_agg(f.ctid) from (select x.ctid from deputize.%I x where x.tenant = $1 and x.%I = $2
                        limit $3 for update) as f', part.column1, part.column2) into rows using p_tenant, p_subject, p_limit;
        continue when rows is null;
        is_more := is_more or cardinality(rows) = p_limit;
        -- Who acts again while they are erased is in rows beside those that were erased before: these two tables have the
        -- person in their keys.
        if part.column1 = 'deprecated_uses' then
            with erased as (delete from deputize.deprecated_uses x where x.ctid = any (rows) returning x.*)
            insert into deputize.deprecated_uses as u
                (tenant, name, version, caller_user, caller_agent, day, calls, last_used_at)
            select e.tenant, e.name, e.version, p_placeholder, e.caller_agent, e.day, e.calls, e.last_used_at from erased e
            on conflict (tenant, name, version, caller_user, caller_agent, day) do update
            set calls = u.calls + excluded.calls, last_used_at = greatest(u.last_used_at, excluded.last_used_at);
            continue;
        elsif part.column1 = 'votes' then
            delete from deputize.votes x using deputize.votes y
            where x.ctid = any (rows) and y.tenant = x.tenant and y.id = x.id and y.voter = p_placeholder;
        end if;
        execute format('update deputize.%I x set %I = $1 %s where x.ctid = any ($2)', part.column1, part.column2,
                       case when part.column3 then ', reason = ''''' else '' end) using p_placeholder, rows;
    end loop;
    -- A proposal without its proposer could be confirmed by themselves.
    delete from deputize.policy_proposals x where x.tenant = p_tenant and x.proposed_by = p_subject;
    -- A revocation of the person stays in force, by a digest: deleting it would give their authority back.
    delete from deputize.revocations x
    where x.tenant = p_tenant and x.kind in ('user', 'subject') and x.value = any (p_names)
      and exists (select from deputize.revocations y where y.tenant = x.tenant and y.kind = x.kind
                  and y.value = 'sha256=' || encode(sha256(convert_to(x.tenant || ' ' || x.value, 'UTF8')), 'hex'));
    update deputize.revocations x
    set value = 'sha256=' || encode(sha256(convert_to(x.tenant || ' ' || x.value, 'UTF8')), 'hex'), reason = ''
    where x.tenant = p_tenant and x.kind in ('user', 'subject') and x.value = any (p_names);
    return is_more;
end $_$;
comment on function deputize.erase_names is
    'Replace a person''s name in what they decided or changed, and in revocations of them, in so many rows of each table. '
    'True if there may be more.';

create function deputize.erase_cost_tasks(p_tenant text, p_pseudonym text, p_limit integer) returns boolean
    language sql set search_path = pg_catalog as $$
    with few as (
        select c.tenant, c.day, c.tool, c.version, c.caller, c.task, c.currency from deputize.call_costs c
        where c.tenant = p_tenant and c.caller[1] = p_pseudonym and c.task <> '' limit p_limit for update
    ), erased as (
        delete from deputize.call_costs c using few f
        where c.tenant = f.tenant and c.day = f.day and c.tool = f.tool and c.version = f.version
          and c.caller = f.caller and c.task = f.task and c.currency = f.currency
        returning c.*
    ), added as (
        insert into deputize.call_costs as c
            (tenant, day, tool, version, caller, task, currency, calls, compute_seconds, storage_bytes, network_bytes,
             tokens, reviews, review_seconds, compute_cost, external_api_cost, storage_io_cost, network_cost, token_cost,
             human_review_cost)
        select e.tenant, e.day, e.tool, e.version, e.caller, '', e.currency, sum(e.calls), sum(e.compute_seconds),
               sum(e.storage_bytes), sum(e.network_bytes), sum(e.tokens), sum(e.reviews), sum(e.review_seconds),
               sum(e.compute_cost), sum(e.external_api_cost), sum(e.storage_io_cost), sum(e.network_cost),
               sum(e.token_cost), sum(e.human_review_cost)
        from erased e
        group by e.tenant, e.day, e.tool, e.version, e.caller, e.currency
        on conflict (tenant, day, tool, version, caller, task, currency) do update
        set calls = c.calls + excluded.calls,
            compute_seconds = c.compute_seconds + excluded.compute_seconds,
            storage_bytes = c.storage_bytes + excluded.storage_bytes,
            network_bytes = c.network_bytes + excluded.network_bytes,
            tokens = c.tokens + excluded.tokens,
            reviews = c.reviews + excluded.reviews,
            review_seconds = c.review_seconds + excluded.review_seconds,
            compute_cost = c.compute_cost + excluded.compute_cost,
            external_api_cost = c.external_api_cost + excluded.external_api_cost,
            storage_io_cost = c.storage_io_cost + excluded.storage_io_cost,
            network_cost = c.network_cost + excluded.network_cost,
            token_cost = c.token_cost + excluded.token_cost,
            human_review_cost = c.human_review_cost + excluded.human_review_cost
    )
    select count(*) = p_limit from few
$$;
comment on function deputize.erase_cost_tasks is
    'Forget for which tasks the calls of a person were, because a task may name them, in so many rows; what they cost stays. '
    'True if there may be more.';

create function deputize.erase_call_rows(p_tenant text, p_calls uuid[], p_limit integer) returns boolean
    language plpgsql security definer set search_path = pg_catalog as $$
declare
    progress_count integer;
    checkpoint_count integer;
begin
    delete from deputize.progress x using (
        select p.id, p.seq from deputize.progress p where p.tenant = p_tenant and p.id = any (p_calls) limit p_limit
    ) as few where x.tenant = p_tenant and x.id = few.id and x.seq = few.seq;
    get diagnostics progress_count = row_count;
    delete from deputize.checkpoints x using (
        select c.call_id, c.seq from deputize.checkpoints c
        where c.tenant = p_tenant and c.call_id = any (p_calls) limit p_limit
    ) as few where x.tenant = p_tenant and x.call_id = few.call_id and x.seq = few.seq;
    get diagnostics checkpoint_count = row_count;
    return progress_count = p_limit or checkpoint_count = p_limit;
end $$;
comment on function deputize.erase_call_rows is
    'Delete what ended calls may have any number of, progress and checkpoints, so many rows of each. True if there may be more.';

create function deputize.erase_stored_values(p_tenant text, p_subject text, p_pseudonym text, p_limit integer)
    returns boolean language plpgsql security definer set search_path = pg_catalog as $$
declare
    value_count integer;
    chunk_count integer;
    result_count integer := 0;
begin
    delete from deputize.observed_values x using (
        select v.rule, v.entity, v.tool from deputize.observed_values v
        where v.tenant = p_tenant and v.subject = p_pseudonym limit p_limit
    ) as few
    where x.tenant = p_tenant and x.subject = p_pseudonym
      and x.rule = few.rule and x.entity = few.entity and x.tool = few.tool;
    get diagnostics value_count = row_count;
    delete from deputize.result_chunks x using (
        select c.reference, c.number from deputize.results r
        join deputize.result_chunks c on c.tenant = r.tenant and c.reference = r.reference
        where r.tenant = p_tenant and r.caller_user = p_subject limit p_limit
    ) as few where x.tenant = p_tenant and x.reference = few.reference and x.number = few.number;
    get diagnostics chunk_count = row_count;
    if chunk_count < p_limit then
        delete from deputize.results x where x.tenant = p_tenant and x.reference in (
            select r.reference from deputize.results r where r.tenant = p_tenant and r.caller_user = p_subject limit p_limit
        );
        get diagnostics result_count = row_count;
    end if;
    return p_limit in (value_count, chunk_count, result_count);
end $$;
comment on function deputize.erase_stored_values is
    'Delete long results of a person and values that were observed for them, so many rows of each table. '
    'True if there may be more.';

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
        if not deputize.erase_call_rows(p_tenant, batch, p_limit) then
            perform deputize.erase_calls(p_tenant, batch, placeholder);
        end if;
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
    if deputize.erase_names(p_tenant, erasure.subject, erasure.names, placeholder, p_limit)
        or deputize.erase_cost_tasks(p_tenant, erasure.pseudonym, p_limit)
        or deputize.erase_stored_values(p_tenant, erasure.subject, erasure.pseudonym, p_limit) then
        return 'more';
    end if;
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

create or replace function deputize.plan_expiry(p_tenant text, p_days integer, p_limit integer)
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
              -- An erasure that a hold stopped had ended the pseudonym before: a hold placed later has a new one.
              or exists (select from deputize.erasures x
                         where x.tenant = p_tenant and x.ended_at is null and x.subject = h.subject
                           and position(convert_to('"' || x.pseudonym || '"', 'UTF8') in e.entry) > 0)
              or exists (select from deputize.calls k
                         where k.tenant = p_tenant and k.id = e.call_id and k.caller_user = h.subject))));
    end_index := least(end_index,
        coalesce((select max(l.leaf_index) + 1 from deputize.log_leaves l where l.tenant = p_tenant), 0),
        coalesce((select max(c.size) from deputize.log_checkpoints c where c.tenant = p_tenant), 0));
    if end_index > first_index then
        return next;
    end if;
end $$;

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
grant execute on function deputize.search_audit, deputize.name_pseudonyms to deputize_reader;
revoke execute on function deputize.secure_table, deputize.erase_calls, deputize.erase_names, deputize.erase_call_rows,
    deputize.erase_cost_tasks, deputize.erase_stored_values from deputize_writer;
