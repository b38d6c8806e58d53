"""Run programs that nobody vouches for: the port, the supervisor, and what surrounds a program."""
