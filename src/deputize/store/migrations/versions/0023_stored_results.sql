create table deputize.results (
    tenant       text not null references deputize.tenants,
    reference    text not null,
    call_id      uuid not null,
    tool         text not null,
    -- Who made the call, as in deputize.calls.
    caller_user  text not null,
    -- The delegation chain, nearest agent first.
    caller_agents text[] not null,
    bytes        bigint not null check (bytes >= 0),
    -- Whether values were hidden in the form that is read unless the reader asks for the original.
    is_redacted  boolean not null,
    -- The index of each form by which its parts are found, sealed; null until all chunks are stored.
    sealed       bytea,
    created_at   timestamptz not null default clock_timestamp(),
    expires_at   timestamptz not null,
    primary key (tenant, reference)
);
create index results_by_expiry on deputize.results (expires_at);
create index results_by_user on deputize.results (tenant, caller_user);
comment on table deputize.results is
    'Results too long or too sensitive to be given whole: who may read them, and until when.';
select deputize.secure_table('results', 'select, insert, update, delete');

create table deputize.result_chunks (
    tenant    text not null,
    reference text not null,
    -- Counted over both forms of a result: first the one that is read, then the original, if they differ.
    number    integer not null check (number >= 0),
    sealed    bytea not null,
    primary key (tenant, reference, number),
    foreign key (tenant, reference) references deputize.results on delete cascade
);
-- The chunks are encrypted, so that compressing them again would only take time.
alter table deputize.result_chunks alter column sealed set storage external;
comment on table deputize.result_chunks is 'The parts of stored results, sealed one by one, so that each is read without the rest.';
select deputize.secure_table('result_chunks', 'select, insert, delete');

create or replace function deputize.continue_erasure(p_tenant text, p_id uuid, p_limit integer, p_grace_seconds integer)
    returns text language plpgsql security definer set search_path = pg_catalog as $$
declare
    erasure deputize.erasures;
    placeholder constant text := 'erased=' || p_id;
    batch uuid[];
    caller constant text := '"caller":["';
    last_id uuid;
begin
    select * into erasure from deputize.erasures e where e.tenant = p_tenant and e.id = p_id for update skip locked;
    if not found then
        return 'waiting';
    elsif erasure.ended_at is not null then
        return 'done';
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

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
revoke execute on function deputize.secure_table, deputize.erase_calls, deputize.erase_names from deputize_writer;
