"""What is kept in PostgreSQL: pools, named SQL, migrations, group commit. Above: the rooms. Below: core."""
