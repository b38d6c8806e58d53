-- Tasks for people, of which there are few: the scan is short.
-- squawk-ignore ban-drop-constraint
alter table deputize.human_tasks drop constraint human_tasks_kind_check;
-- squawk-ignore constraint-missing-not-valid
alter table deputize.human_tasks add constraint human_tasks_kind_check
    check (kind in ('reconcile', 'approval', 'fallback', 'compensate', 'undo'));
comment on table deputize.human_tasks is
    'What a person has to do: approve a call (kind approval; more in approvals under the same id), say whether one took '
    'effect (reconcile), answer for tools that were not available (fallback), take back what a flow could not '
    '(compensate), or undo what an agent asks to be undone (undo).';
