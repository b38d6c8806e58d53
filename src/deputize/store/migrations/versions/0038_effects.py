"""Let one call at a time take an effect back, and keep beside each effect whether it is taken back.

Revision ID: 0038_effects. The release before takes nothing back, and leaves out what its openings do not have. What is
in the journal already is marked once the tables are unlocked again.
"""

from alembic import op

from deputize.store.migrations import run_sql, run_sql_files, set_lock_timeout

revision = "0038_effects"
down_revision = "0037_sessions"
branch_labels = None
depends_on = None
kind = "expand"
oldest_release = "0.1.0"
# Each can be repeated, and locks no more than the rows that it changes.
_MARK_EXISTING = (
    """
    with undos as (
        update deputize.calls k
        set undoes = j.undoes, claim_scope = 'undo', claim_key = uuid_send(j.undoes), window_ends = null
        from deputize.journal j
        where j.undoes is not null and j.number = 0 and k.tenant = j.tenant and k.id = j.call_id and k.undoes is null
          and not k.nothing_happened
        returning k.tenant, k.claim_scope, k.claim_key, k.id
    )
    insert into deputize.claims (tenant, scope, key, call_id) select * from undos on conflict do nothing
    """,
    """
    do $$ begin loop
        update deputize.journal e set is_undone = not e.is_undone
        from (select distinct u.tenant, u.undoes from deputize.journal u where u.undoes is not null) as undone
        where e.tenant = undone.tenant and e.id = undone.undoes and e.is_undone <> exists (
            select from deputize.journal u
            where u.tenant = e.tenant and u.undoes = e.id and u.certainty = 'happened' and not u.is_undone);
        exit when not found;
    end loop; end $$
    """,
    # A caller could name any flow; the call of a step has its flow from the gateway.
    """
    update deputize.journal j set flow_id = null
    from deputize.calls k
    where j.flow_id is not null and k.tenant = j.tenant and k.id = j.call_id and k.flow_id is null
    """,
)


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)
    with op.get_context().autocommit_block():
        for statement in _MARK_EXISTING:
            run_sql(statement)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
