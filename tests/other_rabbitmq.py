"""How is another RabbitMQ run than the one that is installed? From the root file system of a newer Debian, in a chroot.

The file system is made once by mmdebstrap and kept in build/. ``RABBITMQ_ROOT=FOLDER`` in the environment makes every
private broker one of that folder. Its programs see this machine's folder for temporary files, /proc and /dev, through
mounts of their own that end with them. Needs root and mmdebstrap; ``make test-matrix`` installs the latter.

As a script, ``python -m tests.other_rabbitmq`` makes the file system where there is none, and prints its folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

#: The variable that names the root file system of the RabbitMQ to use for private brokers.
ROOT_VARIABLE = "RABBITMQ_ROOT"

#: The Debian that has it, and the RabbitMQ that it has.
SUITE, VERSION = "trixie", (4, 0)

FOLDER = Path(__file__).resolve().parents[1] / "build" / "matrix" / f"rabbitmq-{SUITE}"

# A shell's arguments: the root, the folder for temporary files, the command.
_ENTER = """
root=$0 temporary=$1 && shift
mkdir -p "$root$temporary" && mount --bind "$temporary" "$root$temporary"
mount --rbind /dev "$root/dev" && mount --rbind /proc "$root/proc"
exec chroot "$root" "$@"
"""


def obstacle() -> str:
    """Say why no other RabbitMQ can be run here; "" where one can."""
    missing = [name for name in ("mmdebstrap", "unshare", "chroot") if shutil.which(name) is None]
    if os.geteuid() != 0:
        missing.insert(0, "root")
    return f"needs {', '.join(missing)} (see tests/README.md)" if missing else ""


def file_system() -> Path:
    """Return the root file system with the other RabbitMQ; made where there is none, some 240 MB in a minute."""
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
