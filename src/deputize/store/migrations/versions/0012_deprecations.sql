-- The notice of a deprecated version, and when its usage was last reported.
alter table deputize.tool_versions
    add column deprecated_at timestamptz,
    add column removal_at timestamptz,
    add column successor text,
    add column migration_guide text,
    add column reported_at timestamptz;

create table deputize.deprecated_uses (
    tenant       text not null,
    name         text not null,
    version      text not null,
    caller_user  text not null,
    caller_agent text not null,
    day          date not null,
    calls        bigint not null,
    last_used_at timestamptz not null,
    primary key (tenant, name, version, caller_user, caller_agent, day)
);
create index deprecated_uses_by_day on deputize.deprecated_uses (day);
create index deprecated_uses_by_caller on deputize.deprecated_uses (tenant, caller_user);
comment on table deputize.deprecated_uses is
    'Who still called deprecated versions, by day. Written every few seconds by each process, not by each call.';
select deputize.secure_table('deprecated_uses', 'select, insert, update, delete');

create or replace function deputize.erase_names(p_tenant text, p_subject text, p_names text[], p_placeholder text) returns void
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
    update deputize.deprecated_uses x set caller_user = p_placeholder
    where x.tenant = p_tenant and x.caller_user = p_subject;
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

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
revoke execute on function deputize.secure_table, deputize.erase_calls, deputize.erase_names from deputize_writer;
