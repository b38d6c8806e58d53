"""One driver per kind of place a tool can live in."""
