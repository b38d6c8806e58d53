"""List the attacks that succeed in `deputize dev` where agent and gateway are the same operating system user.

The explanation of security names each of them. Production and `deputize dev --user`, where the agent is another user,
have none of them.
"""

SAME_USER_LIMITS: dict[str, str] = {
    "a token is signed with the key of the gateway": (
        "the key of the development issuer lies in the state folder, which the agent can read as its own"
    ),
    "the code of a tool is started without the gateway": "the agent can import the file, with its own rights",
    "the memory of the gateway is read": (
        "the kernel lets processes of one user trace each other, unless kernel.yama.ptrace_scope forbids it"
    ),
    "the code of a tool is edited before a restart": "deputize dev loads the files that it finds",
    "a permit is written into the development database": (
        "the password of the local PostgreSQL lies in the state folder, which the agent can read as its own"
    ),
    "the gateway is stopped": "a process may signal every other process of its user",
}
"""Attempts by name, each with the reason why one user cannot be protected from itself."""
