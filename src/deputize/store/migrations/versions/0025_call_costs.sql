create table deputize.call_costs (
    tenant             text not null,
    day                date not null,
    tool               text not null,
    version            text not null,
    -- The pseudonyms of the user and of the agents; empty for callers beyond the first thousands of a day.
    caller             text[] not null,
    -- What the caller's delegation is for; empty without one.
    task               text not null,
    -- That of the tool's contract; empty if it names none.
    currency           text not null,
    calls              bigint not null,
    compute_seconds    double precision not null,
    storage_bytes      double precision not null,
    network_bytes      double precision not null,
    tokens             double precision not null,
    reviews            bigint not null,
    review_seconds     double precision not null,
    compute_cost       double precision not null,
    external_api_cost  double precision not null,
    storage_io_cost    double precision not null,
    network_cost       double precision not null,
    token_cost         double precision not null,
    human_review_cost  double precision not null,
    primary key (tenant, day, tool, version, caller, task, currency)
);
create index call_costs_by_user on deputize.call_costs (tenant, (caller[1]), day);
create index call_costs_by_day on deputize.call_costs (day);
comment on table deputize.call_costs is
    'What calls used and cost, by day, tool, caller, task and currency. Written every few seconds by each process.';
select deputize.secure_table('call_costs', 'select, insert, update, delete');

create function deputize.erase_cost_tasks(p_tenant text, p_pseudonym text) returns void language sql
    set search_path = pg_catalog as $$
    with erased as (
        delete from deputize.call_costs c
        where c.tenant = p_tenant and c.caller[1] = p_pseudonym and c.task <> '' returning *
    )
    insert into deputize.call_costs as c
        (tenant, day, tool, version, caller, task, currency, calls, compute_seconds, storage_bytes, network_bytes, tokens,
         reviews, review_seconds, compute_cost, external_api_cost, storage_io_cost, network_cost, token_cost,
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
$$;
comment on function deputize.erase_cost_tasks is
    'Forget for which tasks the calls of a person were, because a task may name them; what they cost stays.';

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
    perform deputize.erase_cost_tasks(p_tenant, erasure.pseudonym);
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

revoke execute on function deputize.erase_cost_tasks from public;
grant execute on function deputize.erase_cost_tasks to deputize_writer;
