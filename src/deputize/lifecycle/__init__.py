"""Run calls through their phases. Start reading at run.py; each phase has a file of its own name."""
