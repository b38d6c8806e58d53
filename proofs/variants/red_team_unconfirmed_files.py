"""`deputize dev --user` that loads the project's files as it finds them, as `deputize dev` of 0.1.0 did."""

from unittest.mock import patch

from deputize.app import open_gateway
from deputize.interfaces.cli.commands.service import dev_user
from deputize.interfaces.cli.main import run_cli

if __name__ == "__main__":
    patch.object(dev_user, "_confirm_changes", lambda *_: True).start()
    run_cli(open_gateway)
