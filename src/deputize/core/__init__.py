"""Define the types that every package shares: contracts, calls, callers, outcomes, errors, states and settings.

Nothing here does input or output, and nothing here imports another package of Deputize.
"""
