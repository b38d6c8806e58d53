-- What a call takes back, beside the call; and whether an effect is taken back, beside the effect.

alter table deputize.calls add column if not exists undoes uuid;
-- Whoever takes an effect back, and under whichever key, claims the effect itself: one call holds that claim, until it is
-- known to have done nothing.
-- squawk-ignore ban-drop-constraint
alter table deputize.calls drop constraint if exists calls_undoes_check;
alter table deputize.calls add constraint calls_undoes_check check (
    undoes is null or claim_scope is not distinct from '\x756e646f'::bytea
        and claim_key is not distinct from uuid_send(undoes)
) not valid;

alter table deputize.journal add column if not exists is_undone boolean not null default false;
comment on table deputize.journal is
    'What each write changed, a row for each resource, and in the first row, sealed, how it is taken back. The id is '
    'that of the outcome''s audit entry. Rows are only added: an uncertain one no longer counts once its call is settled; '
    'but is_undone says whether another call took the effect back, and no one has taken that back since. '
    'The ordinal is the order in which outcomes were committed, by no gateway''s clock. Of calls that excluded each other '
    'by resource locks it is the order of their effects. Two others may have acted in either order if their times overlap: '
    'a call acted after began_at and before ended_at, by the clock of the database.';

create or replace function deputize.mark_undone() returns trigger
    language plpgsql security definer
    set search_path to 'pg_catalog'
    as $$
declare
    entry uuid := new.undoes;
begin
    -- What takes back an undo brings back what that took back, and so on: as far as it changes anything.
    while entry is not null loop
        update deputize.journal e set is_undone = not e.is_undone
        where e.tenant = new.tenant and e.id = entry and e.is_undone <> exists (
            select from deputize.journal u
            where u.tenant = new.tenant and u.undoes = entry and u.id >= deputize.first_uuid_of_eve(entry)
              and u.certainty = 'happened' and not u.is_undone);
        exit when not found;
        select e.undoes into entry from deputize.journal e
        where e.tenant = new.tenant and e.id = entry and e.number = 0;
    end loop;
    return null;
end $$;
comment on function deputize.mark_undone is
    'Trigger: mark what a call took back, in the transaction that records that it did.';
drop trigger if exists journal_mark_undone on deputize.journal;
create trigger journal_mark_undone after insert on deputize.journal for each row
    when (new.undoes is not null and new.certainty = 'happened' and new.number = 0)
    execute function deputize.mark_undone();

-- Nothing asks for them any more: the release before has no journal.
-- squawk-ignore ban-drop-function
drop function if exists deputize.find_later_effects;
-- squawk-ignore ban-drop-function
drop function if exists deputize.is_undone;
