"""Find out from recorded calls who does what, what is unusual, and which policy would allow the rest. Pure."""
