"""A mistake of whoever runs the gateway: said in one sentence with the way out, never shown to a caller.

Raised while settings, keys and files are read; the command line prints it as it is, without a traceback.
"""


class Misconfigured(Exception):
    """The message is the whole story: what is wrong and what to do about it."""
