-- Who is no owner erases in one order, in one transaction, in every release: the erasure, the subject, the entry.
create function deputize.check_erasure() returns trigger language plpgsql set search_path = pg_catalog as $$
begin
    new.requested_at := least(new.requested_at, clock_timestamp());
    if exists (select from deputize.subjects s where s.tenant = new.tenant and s.subject = new.subject
               and deputize.hash_subject(s.salt, s.subject) <> new.pseudonym) then
        raise insufficient_privilege using message = 'the pseudonym of an erasure is not that of its subject';
    end if;
    return new;
end $$;
comment on function deputize.check_erasure is
    'Trigger: the entry that an erasure needs names the pseudonym, so that must be the subject''s.';
create trigger erasures_check before insert on deputize.erasures
    for each row when (not pg_has_role(current_user, 'deputize_owner', 'member'))
    execute function deputize.check_erasure();

create function deputize.require_erasure_entry() returns trigger language plpgsql set search_path = pg_catalog as $$
begin
    -- The tenant's barrier is closed, so that its entry is among the last.
    if not exists (
        select from (select q.entry_id from deputize.log_queue q where q.tenant = new.tenant order by q.number desc limit 100) as q
        join deputize.audit_entries e on e.tenant = new.tenant and e.id = q.entry_id
        where position('"command":"erase_user"'::bytea in e.entry) > 0
          and position('"outcome":"succeeded"'::bytea in e.entry) > 0
          and position(convert_to('"subject":"' || new.pseudonym || '"', 'UTF8') in e.entry) > 0
    ) then
        raise insufficient_privilege using message = 'an erasure needs the audit entry of the act, in its transaction';
    end if;
    return null;
end $$;
comment on function deputize.require_erasure_entry is
    'Trigger: refuse to commit an erasure without its audit entry.';
create constraint trigger erasures_require_entry after insert on deputize.erasures
    deferrable initially deferred for each row when (not pg_has_role(current_user, 'deputize_owner', 'member'))
    execute function deputize.require_erasure_entry();

create function deputize.keep_subject() returns trigger language plpgsql set search_path = pg_catalog as $$
begin
    if not exists (
        select from deputize.erasures e where e.tenant = old.tenant and e.subject = old.subject and e.ended_at is null
    ) then
        raise insufficient_privilege using message = 'a subject is deleted by its erasure only';
    end if;
    return old;
end $$;
comment on function deputize.keep_subject is 'Trigger: keep the salt of a person who is not being erased.';
create trigger subjects_keep before delete on deputize.subjects
    for each row when (not pg_has_role(current_user, 'deputize_owner', 'member'))
    execute function deputize.keep_subject();

-- Changed in one place each; their privileges and comments stay.
do $do$
declare
    change record;
    source text;
begin
    for change in values
        ('deputize.delete_old_payloads(integer)', $old$
begin
    perform$old$, $new$
begin
    p_days := greatest(p_days, 1);
    perform$new$),
        -- Conditions have no order: PostgreSQL may read the day of any relation's name before it knows the parent.
        ('deputize.delete_old_payloads(integer)', $old$and to_date(right(c.relname, 8), 'YYYYMMDD') <$old$,
         $new$and case when c.relname ~ '_[0-9]{8}$' then to_date(right(c.relname, 8), 'YYYYMMDD') end <$new$),
        ('deputize.search_audit(text[], jsonb, uuid, uuid, integer, integer)',
         $old$(select to_date(right(child.relname, 8), 'YYYYMMDD') as day)$old$,
         $new$(select case when child.relname ~ '_[0-9]{8}$' then to_date(right(child.relname, 8), 'YYYYMMDD') end as day)$new$),
        ('deputize.create_partitions(integer)', '-1..days_ahead loop', '-1..least(days_ahead, 31) loop'),
        -- Who is erased, and signs in again, must not vote a second time: a vote is erased once it is counted.
        ('deputize.erase_names(text, text, text[], text, integer)', $old$x.%I = $2
                        limit $3 for update) as f', part.column1, part.column2)$old$, $new$x.%I = $2 %s
                        limit $3 for update) as f', part.column1, part.column2,
                       case part.column1 when 'votes' then 'and not exists (select from deputize.approvals a
                            where a.tenant = x.tenant and a.id = x.id and a.state = ''open'')' else '' end)$new$),
        ('deputize.continue_erasure(text, uuid, integer, integer)', $old$
          and k.created_at <= erasure.requested_at
    ) then$old$, $new$
          and k.created_at <= erasure.requested_at
    ) or exists (
        -- A vote that still counts keeps its voter: they could come back and vote again.
        select from deputize.votes v join deputize.approvals a on a.tenant = v.tenant and a.id = v.id
        where v.tenant = p_tenant and v.voter = erasure.subject and a.state = 'open'
    ) then$new$)
    loop
        source := pg_get_functiondef(change.column1::regprocedure);
        if position(change.column2 in source) = 0 then
            raise exception '% is not what this migration changes', change.column1;
        end if;
        execute replace(source, change.column2, change.column3);
    end loop;
end $do$;

revoke execute on function deputize.check_erasure, deputize.require_erasure_entry, deputize.keep_subject from public;
grant execute on function deputize.check_erasure, deputize.require_erasure_entry, deputize.keep_subject to deputize_writer;
