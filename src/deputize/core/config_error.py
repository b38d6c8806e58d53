"""Define the error of a wrong configuration, which the operator has to fix; callers never see it.

Raised while settings, keys and files are loaded. The command line prints its message without a traceback.
"""


class ConfigError(Exception):
    """A wrong configuration. The message says what is wrong and how to fix it."""
