"""Decide what a new version of a tool is to its callers: a patch, an addition or a break, and where it breaks.

`version_numbers.py` judges a version number by what `contract_changes.py` finds between two contracts. `subset.py`
proves that one JSON Schema allows no value that another refuses; what cannot be proven counts as a break.
`negotiation.py` compares what an agent expects with what a version offers by the same proofs.
"""
