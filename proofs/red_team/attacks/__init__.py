"""Hold one module per class of attacks; see `proofs/red_team/attack.py` for what a module defines."""
