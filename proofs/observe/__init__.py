"""Prove that a week of observed calls is reported truly: every planted oddity, and hardly anything else."""
