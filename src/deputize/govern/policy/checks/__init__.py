"""Check policies before they become active: validation, lint, test cases, backtests."""
