"""What the command line prints, as files that people can read: one screen per file beside this one.

`python -m tests.acceptance.cli.screens --write` writes them again.
"""
