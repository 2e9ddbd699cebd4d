"""Runs RabbitMQ from the root file system of a newer Debian, in a chroot.

mmdebstrap creates the file system once, in build/. With ``RABBITMQ_ROOT=DIRECTORY`` in the environment, every private
broker runs from that directory. The programs have this machine's temporary directory, /proc and /dev mounted in a
private mount namespace. Requires root and mmdebstrap, which ``make test-matrix`` installs.

As a script, ``python -m tests.other_rabbitmq`` creates the file system if it does not exist, and prints its directory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

#: Environment variable with the root file system from which private brokers run.
ROOT_VARIABLE = "RABBITMQ_ROOT"

#: The release of Debian, and its version of RabbitMQ.
SUITE, VERSION = "trixie", (4, 0)

FOLDER = Path(__file__).resolve().parents[1] / "build" / "matrix" / f"rabbitmq-{SUITE}"

# The arguments of this shell script are the root, the temporary directory, and the command.
_ENTER = """
root=$0 temporary=$1 && shift
mkdir -p "$root$temporary" && mount --bind "$temporary" "$root$temporary"
mount --rbind /dev "$root/dev" && mount --rbind /proc "$root/proc"
exec chroot "$root" "$@"
"""


def obstacle() -> str:
    """Return the reason why RabbitMQ cannot be run in a chroot; "" if it can."""
    missing = [name for name in ("mmdebstrap", "unshare", "chroot") if shutil.which(name) is None]
    if os.geteuid() != 0:
        missing.insert(0, "root")
    return f"needs {', '.join(missing)} (see tests/README.md)" if missing else ""


def file_system() -> Path:
    """Return the root file system. Creating it takes up to a minute and 240 MB."""
    if not FOLDER.exists():
        half = FOLDER.with_name(FOLDER.name + ".half")
        shutil.rmtree(half, ignore_errors=True)
        half.parent.mkdir(parents=True, exist_ok=True)
        command = ["mmdebstrap", "--variant=minbase", "--include=rabbitmq-server", SUITE, str(half)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        half.rename(FOLDER)
    return FOLDER


def inside(root: Path, *command: str) -> list[str]:
    """Return the command that runs ``command`` in a root file system."""
    return ["unshare", "--mount", "sh", "-ec", _ENTER, str(root), str(Path(tempfile.gettempdir()).resolve()), *command]


if __name__ == "__main__":
    print(file_system())
