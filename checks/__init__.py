"""Checks of the house that no ready-made tool makes; `make check` runs them all."""
