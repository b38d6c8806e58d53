"""Store data in PostgreSQL: pools, named SQL, migrations, group commit, keys; and the counters of limits."""
