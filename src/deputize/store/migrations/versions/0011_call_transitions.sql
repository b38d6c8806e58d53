create function deputize.refuse_transition() returns trigger language plpgsql as $$
begin
    raise exception using errcode = 'check_violation',
        message = format('a call that is %s cannot become %s', old.state, new.state),
        detail = format('call %s of tenant %s', old.id, old.tenant);
end $$;
comment on function deputize.refuse_transition is
    'Refuse a change of state that the transitions of a call do not allow (see core/states.py).';

-- A call that waits for approval is inserted and given its state by one transaction, in which now() does not change.
create trigger calls_refuse_transition before update of state on deputize.calls for each row
    when (new.state <> old.state
        and not (old.state = 'running' and new.state = 'awaiting_approval' and old.created_at = now())
        and old.state || '>' || new.state <> all (array[
            'awaiting_approval>blocked', 'awaiting_approval>canceled', 'awaiting_approval>denied',
            'awaiting_approval>failed', 'awaiting_approval>queued', 'awaiting_approval>timed_out',
            'awaiting_approval>unknown', 'awaiting_approval>validation_failed', 'queued>awaiting_approval',
            'queued>blocked', 'queued>canceled', 'queued>denied', 'queued>failed', 'queued>running',
            'queued>timed_out', 'queued>unknown', 'queued>validation_failed', 'running>blocked', 'running>canceled',
            'running>denied', 'running>failed', 'running>needs_input', 'running>queued', 'running>succeeded',
            'running>timed_out', 'running>unknown', 'running>validation_failed', 'unknown>blocked',
            'unknown>canceled', 'unknown>denied', 'unknown>failed', 'unknown>needs_input', 'unknown>queued',
            'unknown>running', 'unknown>succeeded', 'unknown>timed_out', 'unknown>validation_failed'
        ]))
    execute function deputize.refuse_transition();
