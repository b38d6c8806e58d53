"""Store tools' secrets, and fetch one for the duration of a call."""
