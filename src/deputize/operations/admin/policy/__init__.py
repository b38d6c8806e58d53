"""Check, explain, backtest and rehearse policies."""
