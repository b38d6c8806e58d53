"""Read one database by statements that can only read, change rows by their keys, plan migrations: `[builtin.sql]`."""
