"""Read one PostgreSQL database by statements that can only read: `[builtin.sql]`."""
