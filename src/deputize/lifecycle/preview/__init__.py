"""Preview the effect of a call before it is made."""
