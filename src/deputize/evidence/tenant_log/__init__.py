"""Keep the transparency log of each tenant in PostgreSQL: append entries, sign checkpoints, and prove what is in it."""
