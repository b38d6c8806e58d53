"""Programs that an agent runs with the account of a project's owner.

Each prints what it achieved, and nothing if it was kept out.
"""

OPEN_FILES = """
import sys
for path in sys.argv[1:]:
    try:
        open(path, "rb").read(1)
    except OSError:
        continue
    print(path)
"""
WRITE_FILES = """
import os, sys
for path in sys.argv[1:]:
    for act in (lambda: open(path, "ab").close(), lambda: os.rename(path, path + ".old"), lambda: os.unlink(path)):
        try:
            act()
        except OSError:
            continue
        print(path)
"""
READ_PROCESSES = """
import ctypes, os, sys
for pid in sys.argv[1:]:
    for name in ("mem", "environ", "maps", "stack"):
        try:
            # Nothing is mapped at the start of the memory: whoever may open it may read the rest.
            open(f"/proc/{pid}/{name}", "rb", buffering=0).read(0 if name == "mem" else 1)
        except OSError:
            continue
        print(pid, name)
    for name in ("fd", "map_files"):
        try:
            os.listdir(f"/proc/{pid}/{name}")
        except OSError:
            continue
        print(pid, name)
    if ctypes.CDLL(None, use_errno=True).ptrace(16, int(pid), 0, 0) == 0:
        print(pid, "ptrace")
"""
SIGNAL_PROCESSES = """
import os, sys
for pid in sys.argv[1:]:
    for number in (0, 2, 15, 19, 9):
        try:
            os.kill(int(pid), number)
        except OSError:
            continue
        print(pid, number)
"""
CONNECT = """
import asyncio, sys, asyncpg
async def connect():
    for host in ("127.0.0.1", sys.argv[2]):
        for user in ("deputize", "postgres", "games"):
            for password in ("", "deputize", "postgres", None):
                try:
                    await asyncpg.connect(host=host, port=int(sys.argv[1]), user=user, password=password,
                                          database="deputize", timeout=5)
                except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
                    continue
                print(host, user)
asyncio.run(connect())
"""
SIGN_TOKEN = """
import sys
from pathlib import Path
from deputize.govern.identity.dev_issuer import load_dev_issuer, mint_dev_token
load_dev_issuer(Path(sys.argv[1]))
print(mint_dev_token(Path(sys.argv[1]), scopes=["deputize:admin", "proof:write"]))
"""
WRITE_TEXT = "import sys; from pathlib import Path; Path(sys.argv[1]).write_text(sys.argv[2])"
