"""The interfaces as composed, over real HTTP."""
