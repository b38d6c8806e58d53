"""Check a project and its environment for `deputize doctor`."""
