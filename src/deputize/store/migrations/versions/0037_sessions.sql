-- The state of a session is sealed, kept and erased like the input of the call that began it.
-- squawk-ignore ban-drop-constraint
alter table deputize.sealed_payloads drop constraint sealed_payloads_kind_check;
alter table deputize.sealed_payloads add constraint sealed_payloads_kind_check
    check (kind in ('input', 'outcome', 'input_responses', 'flow', 'session')) not valid;
