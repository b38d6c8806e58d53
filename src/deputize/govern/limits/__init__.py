"""How much: rates, calls at once, budgets, loops that ran away."""
