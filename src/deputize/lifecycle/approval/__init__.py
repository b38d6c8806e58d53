"""Request approval of calls, and check before they start that they are what was approved."""
