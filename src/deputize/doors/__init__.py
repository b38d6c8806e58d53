"""The ways in. Each door translates between its wire form and `lifecycle/gateway.py`, and decides nothing."""
