create table deputize.erasures (
    tenant       text not null references deputize.tenants,
    id           uuid not null,
    -- Until it has ended: the person, the other names that revocations have for them, and their pseudonym.
    subject      text,
    names        text[],
    pseudonym    text,
    last_entry   uuid not null default '00000000-0000-0000-0000-000000000000',
    requested_at timestamptz not null default clock_timestamp(),
    ended_at     timestamptz,
    primary key (tenant, id),
    constraint erasures_forget_the_person check (
        (ended_at is null) = (subject is not null) and (subject is null) = (names is null)
        and (subject is null) = (pseudonym is null)
    )
);
create index erasures_open on deputize.erasures (requested_at) where ended_at is null;
comment on table deputize.erasures is
    'Erasures of people. A row names its person only until everything else is erased.';
select deputize.secure_table('erasures', 'select, insert');

create function deputize.erase_calls(p_tenant text, p_calls uuid[], p_placeholder text) returns void
    language plpgsql security definer set search_path = pg_catalog as $$
begin
    delete from deputize.sealed_payloads x where x.tenant = p_tenant and x.id = any (p_calls);
    delete from deputize.checkpoints x where x.tenant = p_tenant and x.call_id = any (p_calls);
    delete from deputize.progress x where x.tenant = p_tenant and x.id = any (p_calls);
    delete from deputize.callbacks x where x.tenant = p_tenant and x.id = any (p_calls);
    delete from deputize.deliveries x where x.tenant = p_tenant and x.call_id = any (p_calls);
    delete from deputize.runs x where x.tenant = p_tenant and x.id = any (p_calls);
    with asked as (
        delete from deputize.approvals x where x.tenant = p_tenant and x.call_id = any (p_calls) returning x.id
    ), resolved as (
        delete from deputize.tickets x where x.tenant = p_tenant and x.call_id = any (p_calls) returning x.id
    ), ids as (
        select id from asked union select id from resolved
    ), votes as (
        delete from deputize.votes x using ids where x.tenant = p_tenant and x.id = ids.id
    ), groups as (
        delete from deputize.approval_groups x using ids where x.tenant = p_tenant and x.id = ids.id
    ), notices as (
        delete from deputize.notices x using ids where x.tenant = p_tenant and x.ticket = ids.id
    )
    delete from deputize.notifications x using ids where x.tenant = p_tenant and x.ticket = ids.id;
    update deputize.audit_entries x set salt = null
    where x.tenant = p_tenant and x.call_id = any (p_calls) and x.salt is not null;
    update deputize.calls x set caller_user = p_placeholder, session = null
    where x.tenant = p_tenant and x.id = any (p_calls);
end $$;
comment on function deputize.erase_calls is
    'Delete what ended calls contained, and make their rows anonymous. Entries of the audit log keep their bytes.';

create function deputize.erase_names(p_tenant text, p_subject text, p_names text[], p_placeholder text) returns void
    language plpgsql security definer set search_path = pg_catalog as $$
begin
    update deputize.votes x set voter = p_placeholder, reason = '' where x.tenant = p_tenant and x.voter = p_subject;
    update deputize.tickets x set resolved_by = p_placeholder, reason = ''
    where x.tenant = p_tenant and x.resolved_by = p_subject;
    update deputize.secrets x set updated_by = p_placeholder where x.tenant = p_tenant and x.updated_by = p_subject;
    update deputize.policies x set put_by = p_placeholder where x.tenant = p_tenant and x.put_by = p_subject;
    -- A proposal without its proposer could be confirmed by themselves.
    delete from deputize.policy_proposals x where x.tenant = p_tenant and x.proposed_by = p_subject;
    update deputize.tool_versions x set registered_by = p_placeholder
    where x.tenant = p_tenant and x.registered_by = p_subject;
    update deputize.server_changes x set decided_by = p_placeholder, reason = ''
    where x.tenant = p_tenant and x.decided_by = p_subject;
    update deputize.server_pins x set accepted_by = p_placeholder
    where x.tenant = p_tenant and x.accepted_by = p_subject;
    update deputize.switches x set turned_by = p_placeholder, reason = ''
    where x.tenant = p_tenant and x.turned_by = p_subject;
    update deputize.revocations x set revoked_by = p_placeholder, reason = ''
    where x.tenant = p_tenant and x.revoked_by = p_subject;
    -- A revocation of the person stays in force, by a digest: deleting it would give their authority back.
    delete from deputize.revocations x
    where x.tenant = p_tenant and x.kind in ('user', 'subject') and x.value = any (p_names)
      and exists (select from deputize.revocations y where y.tenant = x.tenant and y.kind = x.kind
                  and y.value = 'sha256=' || encode(sha256(convert_to(x.tenant || ' ' || x.value, 'UTF8')), 'hex'));
    update deputize.revocations x
    set value = 'sha256=' || encode(sha256(convert_to(x.tenant || ' ' || x.value, 'UTF8')), 'hex'), reason = ''
    where x.tenant = p_tenant and x.kind in ('user', 'subject') and x.value = any (p_names);
end $$;
comment on function deputize.erase_names is
    'Replace a person''s name in what they decided or changed, and in revocations of them.';

create function deputize.continue_erasure(p_tenant text, p_id uuid, p_limit integer, p_grace_seconds integer)
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
    'Erase the next batch of a person''s data: more, done, or waiting for open calls, for other processes, or because '
    'another process does it. It changes no entry of the audit log, only deletes the salts beside them.';

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
revoke execute on function deputize.secure_table, deputize.erase_calls, deputize.erase_names from deputize_writer;
