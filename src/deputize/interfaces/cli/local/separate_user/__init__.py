"""Run a development gateway as another user than the owner of its project (`deputize dev --user`)."""
