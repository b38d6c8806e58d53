create table deputize.observed_values (
    tenant         text not null references deputize.tenants,
    -- The pseudonym of the user who saw the value.
    subject        text not null,
    rule           text not null,
    -- A digest of the thing, keyed for the tenant.
    entity         bytea not null,
    tool           text not null,
    authority_rank integer not null,
    call_id        uuid not null,
    sealed         bytea not null,
    seen_at        timestamptz not null,
    expires_at     timestamptz not null,
    primary key (tenant, subject, rule, entity, tool)
);
create index observed_values_by_age on deputize.observed_values (tenant, subject, rule, seen_at);
create index observed_values_by_expiry on deputize.observed_values (expires_at);
comment on table deputize.observed_values is
    'The newest value that each tool told a user about a thing, by consistency rule. Sealed; lives for at most a day.';
select deputize.secure_table('observed_values', 'select, insert, update, delete');

create table deputize.disagreements (
    tenant        text not null references deputize.tenants,
    rule          text not null,
    entity        bytea not null,
    id            uuid not null,
    tools         text[] not null,
    call_ids      uuid[] not null,
    noticed_at    timestamptz not null default clock_timestamp(),
    expires_at    timestamptz not null,
    is_notice_due boolean not null default true,
    primary key (tenant, rule, entity)
);
create index disagreements_by_id on deputize.disagreements (tenant, id);
create index disagreements_to_notify on deputize.disagreements (noticed_at) where is_notice_due;
create index disagreements_by_expiry on deputize.disagreements (expires_at);
comment on table deputize.disagreements is
    'Things that tools say different things about and no rule resolves: who was told, once in each window.';
select deputize.secure_table('disagreements', 'select, insert, update, delete');

alter table deputize.notifications drop constraint notifications_kind_check;
alter table deputize.notifications add constraint notifications_kind_check
    check (kind in ('asked', 'escalated', 'reminder', 'broken-glass', 'digest', 'contract-test', 'disagreement')) not valid;
alter table deputize.notifications validate constraint notifications_kind_check;

create function deputize.observe_value(
    p_tenant text, p_subject text, p_rule text, p_entity bytea, p_tool text, p_authority_rank integer, p_call_id uuid,
    p_sealed bytea, p_within_seconds double precision, p_max_values integer
) returns table (tool text, authority_rank integer, call_id uuid, sealed bytea, seen_at timestamptz)
    language plpgsql set search_path = pg_catalog set lock_timeout = '2s' set enable_seqscan = off as $$
#variable_conflict use_column
declare
    at timestamptz;
    is_new boolean;
    oldest timestamptz;
begin
    -- Of two tools that say something at the same moment, one waits for the other and sees what it said.
    perform pg_advisory_xact_lock(hashtextextended(
        'deputize.observe_value ' || p_tenant || ' ' || p_subject || ' ' || p_rule || ' ' || encode(p_entity, 'hex'), 0));
    at := clock_timestamp();
    insert into deputize.observed_values as v
        (tenant, subject, rule, entity, tool, authority_rank, call_id, sealed, seen_at, expires_at)
    values (p_tenant, p_subject, p_rule, p_entity, p_tool, p_authority_rank, p_call_id, p_sealed, at,
            at + make_interval(secs => p_within_seconds))
    on conflict (tenant, subject, rule, entity, tool) do update
    set authority_rank = excluded.authority_rank, call_id = excluded.call_id, sealed = excluded.sealed,
        seen_at = excluded.seen_at, expires_at = excluded.expires_at
    returning v.xmax = 0 into is_new;
    if is_new then
        select v.seen_at into oldest from deputize.observed_values v
        where v.tenant = p_tenant and v.subject = p_subject and v.rule = p_rule
        order by v.seen_at desc offset p_max_values limit 1;
        if found then
            -- Some at a time; others that make room at the same moment are not waited for.
            delete from deputize.observed_values v where v.ctid = any (array(
                select o.ctid from deputize.observed_values o
                where o.tenant = p_tenant and o.subject = p_subject and o.rule = p_rule and o.seen_at <= oldest
                order by o.seen_at limit 100 for update skip locked));
        end if;
    end if;
    return query
    select v.tool, v.authority_rank, v.call_id, v.sealed, v.seen_at from deputize.observed_values v
    where v.tenant = p_tenant and v.subject = p_subject and v.rule = p_rule and v.entity = p_entity
      and (v.tool = p_tool or v.seen_at > at - make_interval(secs => p_within_seconds));
end $$;
comment on function deputize.observe_value is
    'Store what a tool told a user about a thing, and return it with what other tools told the same user in the window. '
    'Of one user and rule only so many values are kept: the oldest make room.';

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
