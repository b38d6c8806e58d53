"""List the attacks that succeed in `deputize dev` where agent and gateway are the same operating system user.

The explanation of security names each of them. Production and `deputize dev --user`, where the agent is another user,
have none of them.
"""

SAME_USER_LIMITS: dict[str, str] = {
    "a permit is written into the development database": (
        "the password of the local PostgreSQL lies in the state folder, which the agent can read as its own"
    ),
}
"""Attempts by name, each with the reason why one user cannot be protected from itself."""
