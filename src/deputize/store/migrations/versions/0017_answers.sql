-- Answers to some of a server's questions, sealed like the rest of their call, until the others come.
-- The rows that are there were all held to less, so nothing is looked at again: the tables are locked for a moment only.
alter table deputize.sealed drop constraint sealed_kind_check;
alter table deputize.sealed add constraint sealed_kind_check check (kind in ('input', 'outcome', 'answers')) not valid;
