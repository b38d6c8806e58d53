"""The doors as composed, over real HTTP."""
