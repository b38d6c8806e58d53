"""Index what audit entries are searched by, and the pseudonyms of subjects.

Revision ID: 0018_audit_indexes
"""

from deputize.store.migrations import create_index_concurrently, set_lock_timeout

revision = "0018_audit_indexes"
down_revision = "0017_audit_search"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    create_index_concurrently(
        "audit_entries_by_terms",
        "audit_entries",
        # New terms are appended to a list, which the gateway merges in the background: commits do not wait for that.
        "using gin (deputize.list_audit_terms(tenant, id, entry))"
        " with (fastupdate = on, gin_pending_list_limit = 16384)",
    )
    create_index_concurrently("subjects_by_pseudonym", "subjects", "(tenant, deputize.hash_subject(salt, subject))")


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
