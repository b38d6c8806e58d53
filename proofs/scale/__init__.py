"""What calls cost, and how that grows with tenants and rows: figures for `docs/explanation/scale.md`."""
