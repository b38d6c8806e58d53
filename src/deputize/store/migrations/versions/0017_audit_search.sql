-- Searching the audit: what entries are found by, a search that reads a bounded part of the log, and the names behind
-- pseudonyms. Row-level security would keep the index from being used, so both searches read as the schema's owner, and
-- only the tenant that the reader names in `deputize.tenant`.

create function deputize.get_audit_period(p_id uuid) returns bigint language sql immutable strict parallel safe as $$
    select ('x' || substr(p_id::text, 1, 8))::bit(32)::bigint >> 4
$$;
comment on function deputize.get_audit_period is
    'Return the number of the 17 minutes that an id was made in: terms are indexed below it, so that a search reads few.';

create function deputize.list_audit_terms(p_tenant text, p_id uuid, p_entry bytea) returns bigint[]
    language plpgsql immutable strict parallel safe cost 1000 as $$
declare
    body text := convert_from(p_entry, 'UTF8');
    period constant bigint := ('x' || substr(p_id::text, 1, 8))::bit(32)::bigint >> 4 << 35;
    seed constant bigint := hashtextextended(p_tenant, 0);
    labels text[] := '{}';
    terms bigint[] := '{}';
    value text;
begin
    if position('"caller":["' in body) > 0 then
        value := split_part(split_part(body, '"caller":["', 2), '"]', 1);
        labels := string_to_array('user=' || replace(value, '","', E'\nagent='), E'\n');
    end if;
    if position('"approval":"' in body) > 0 then
        labels := labels || 'decision=ask'::text;
    end if;
    -- Keys are sorted, so all others come after the kind. What most entries have in common is not indexed.
    body := split_part(body, ',"kind":"', 2);
    value := split_part(body, '"', 1);
    if value not in ('read', 'intent', 'outcome') then
        labels := labels || ('kind=' || value);
    end if;
    value := split_part(split_part(body, ',"outcome":"', 2), '"', 1);
    if value not in ('', 'succeeded') then
        labels := labels || ('outcome=' || value);
        if value in ('denied', 'blocked') then
            labels := labels || 'decision=deny'::text;
        end if;
    end if;
    value := split_part(split_part(body, ',"rules":["', 2), '"]', 1);
    if value <> '' then
        labels := labels || string_to_array('rule=' || replace(value, '","', E'\nrule='), E'\n');
    end if;
    value := split_part(split_part(body, ',"scopes":["', 2), '"]', 1);
    if value <> '' then
        for value in select distinct split_part(scope, ' ', 2) from unnest(string_to_array(value, '","')) as scope loop
            labels := labels || ('resource=' || value);
        end loop;
    end if;
    value := split_part(split_part(body, ',"session":"', 2), '"', 1);
    if value <> '' then
        labels := labels || ('session=' || value);
    end if;
    value := split_part(split_part(body, ',"tool":"', 2), '"', 1);
    if value <> '' then
        labels := labels || ('tool=' || value);
    end if;
    value := split_part(split_part(body, ',"trace":"', 2), '"', 1);
    foreach value in array labels || ('trace=' || value) loop
        terms := terms || (period | (hashtextextended(value, seed) & 34359738367));
    end loop;
    return terms;
end $$;
comment on function deputize.list_audit_terms is
    'List the terms that an audit entry is indexed by: a hash of each label, such as tool=crm.get_user, below the number of '
    'the 17 minutes that its id is in. Values are taken as the JSON has them, up to the first quote.';

create function deputize.search_audit(
    p_labels text[], p_needles jsonb, p_first uuid, p_before uuid, p_limit integer, p_milliseconds integer
) returns table (id uuid, entry bytea) language plpgsql
    security definer set search_path = pg_catalog set enable_seqscan = off set jit = off
    set max_parallel_workers_per_gather = 0 as $$
declare
    tenant_name constant text := current_setting('deputize.tenant', true);
    seed constant bigint := hashtextextended(tenant_name, 0);
    ends_at constant timestamptz := clock_timestamp() + make_interval(secs => p_milliseconds / 1000.0);
    walk constant integer := 1000;
    needles constant text := coalesce((
        select string_agg(' and (' || (
            select string_agg(format('position(%L::bytea in s.entry) > 0', convert_to(needle, 'UTF8')), ' or ')
            from jsonb_array_elements_text(alternatives) as needle) || ')', '')
        from jsonb_array_elements(p_needles) as alternatives), '');
    before_id uuid := p_before;
    oldest_id uuid;
    last_id uuid;
    day_id uuid;
    oldest_period bigint;
    low bigint;
    high bigint;
    width bigint := 1;
    found_count integer := 0;
    more_count integer;
    day_table text;
    conditions text;
begin
    select a.id into oldest_id from deputize.audit_entries a
    where a.tenant = tenant_name and a.id >= p_first and a.id < p_before order by a.id limit 1;
    if oldest_id is null then
        return;
    end if;
    -- What is frequent is found by reading backwards; so is what no index has, for as long as there is time.
    loop
        select a.id into last_id from deputize.audit_entries a
        where a.tenant = tenant_name and a.id >= oldest_id and a.id < before_id order by a.id desc offset walk - 1 limit 1;
        return query execute 'select s.id, s.entry from (select a.id, a.entry from deputize.audit_entries a'
            ' where a.tenant = $1 and a.id >= $2 and a.id < $3 order by a.id desc limit $4) as s where true'
            || needles || ' limit $5'
            using tenant_name, oldest_id, before_id, walk, p_limit - found_count;
        get diagnostics more_count = row_count;
        found_count := found_count + more_count;
        if found_count >= p_limit or last_id is null then
            return;
        end if;
        before_id := last_id;
        exit when cardinality(p_labels) > 0;
        if clock_timestamp() > ends_at then
            return query select before_id, null::bytea;
            return;
        end if;
    end loop;
    -- What is rare is found by the index, day by day, in windows that grow while they hold little.
    oldest_period := deputize.get_audit_period(oldest_id);
    for day_table, day_id, low, high in
        select child.relname, deputize.first_uuid_of_day(day), greatest(oldest_period, deputize.get_audit_period(deputize.first_uuid_of_day(day))),
            deputize.get_audit_period(deputize.first_uuid_of_day(day + 1))
        from pg_inherits join pg_class child on child.oid = inhrelid
        cross join lateral (select to_date(right(child.relname, 8), 'YYYYMMDD') as day) as days
        where inhparent = 'deputize.audit_entries'::regclass
          and deputize.first_uuid_of_day(day) < before_id and deputize.first_uuid_of_day(day + 1) > oldest_id
        order by day desc
    loop
        high := least(high, deputize.get_audit_period(before_id));
        while high >= low loop
            -- The first period of a day began the day before, in another table.
            last_id := greatest(day_id,
                (lpad(to_hex(greatest(high - width + 1, low) << 4), 8, '0') || repeat('0', 24))::uuid);
            select string_agg(format(' and deputize.list_audit_terms(a.tenant, a.id, a.entry) && %L::bigint[]', keys.keys), '')
            into conditions from (
                select array_agg(period << 35 | (hashtextextended(label, seed) & 34359738367)) as keys
                from unnest(p_labels) as label, generate_series(greatest(high - width + 1, low), high) as period
                group by label) as keys;
            return query execute format('select s.id, s.entry from (select a.tenant, a.id, a.entry from deputize.%I a'
                ' where true%s offset 0) as s where s.tenant = $1 and s.id >= $2 and s.id < $3%s'
                ' order by s.id desc limit $4', day_table, conditions, needles)
                using tenant_name, oldest_id, before_id, p_limit - found_count;
            get diagnostics more_count = row_count;
            found_count := found_count + more_count;
            if found_count >= p_limit then
                return;
            end if;
            before_id := least(before_id, last_id);
            if clock_timestamp() > ends_at then
                return query select before_id, null::bytea;
                return;
            end if;
            high := high - width;
            width := least(width * 2, 128, case when more_count = 0 then 128
                else greatest(1, width * (p_limit - found_count) / more_count) end);
        end loop;
    end loop;
end $$;
comment on function deputize.search_audit is
    'Search the audit entries of the tenant that the reader names, newest first, from one id to before another. Entries are '
    'those that have the labels and contain one text of each of the needles. If time is over, the last row has no entry: its id says how far the '
    'search came.';

create function deputize.hash_subject(p_salt bytea, p_subject text) returns text
    language sql immutable strict parallel safe as $$
    select encode(sha256(p_salt || convert_to(p_subject, 'UTF8')), 'hex')
$$;
comment on function deputize.hash_subject is 'Compute the pseudonym of a subject, as store/pseudonyms.py does.';

create function deputize.name_pseudonyms(p_pseudonyms text[]) returns table (pseudonym text, subject text)
    language sql stable security definer set search_path = pg_catalog as $$
    select deputize.hash_subject(s.salt, s.subject), s.subject from deputize.subjects s
    where s.tenant = current_setting('deputize.tenant', true)
      and deputize.hash_subject(s.salt, s.subject) = any (p_pseudonyms)
$$;
comment on function deputize.name_pseudonyms is
    'Name the subjects behind pseudonyms, of the tenant that the reader names. Nothing is named whose salt was erased.';

create function deputize.merge_audit_terms() returns bigint language plpgsql
    security definer set search_path = pg_catalog as $$
declare
    index_id regclass;
    merged bigint := 0;
begin
    -- Entries are written to the partitions of today and, around midnight, of its neighbours.
    for index_id in
        select i.inhrelid::regclass from pg_inherits i
        join pg_index x on x.indexrelid = i.inhrelid join pg_class t on t.oid = x.indrelid
        where i.inhparent = to_regclass('deputize.audit_entries_by_terms')
          and t.relname >= 'audit_entries' || to_char((now() at time zone 'utc')::date - 1, '_YYYYMMDD')
          and t.relname <= 'audit_entries' || to_char((now() at time zone 'utc')::date + 1, '_YYYYMMDD')
    loop
        merged := merged + gin_clean_pending_list(index_id);
    end loop;
    return merged;
end $$;
comment on function deputize.merge_audit_terms is
    'Merge the terms of new audit entries into the index, so that no commit has to. Returns how many pages were merged.';

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
grant execute on function deputize.search_audit, deputize.name_pseudonyms to deputize_reader;
revoke execute on function deputize.secure_table, deputize.erase_calls, deputize.erase_names from deputize_writer;
