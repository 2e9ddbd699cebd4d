"""Runs RabbitMQ from the root file system of another Debian release, in a chroot.

mmdebstrap creates the file systems once each, in build/. With ``RABBITMQ_ROOT=DIRECTORY`` in the environment, every
private broker runs from that directory. The programs have this machine's temporary directory, /proc and /dev mounted in
a private mount namespace. Requires root, mmdebstrap and Debian's keys, which ``deploy/local/setup newest`` installs.

As a script, ``python -m tests.other_rabbitmq [RELEASE]`` creates the file system of a release if it does not exist, and
prints its directory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

#: Environment variable with the root file system from which private brokers run.
ROOT_VARIABLE = "RABBITMQ_ROOT"

#: Releases of Debian, oldest first, and their versions of RabbitMQ. The last one still receives new versions.
RELEASES = {"bullseye": (3, 8), "bookworm": (3, 10), "trixie": (4, 0), "forky": (4, 3)}

#: The release with the newest RabbitMQ.
NEWEST = next(reversed(RELEASES))

FOLDER = Path(__file__).resolve().parents[1] / "build" / "matrix"

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


def file_system(release: str) -> Path:
    """Return the root file system of a release. Creating it takes up to a minute and 450 MB."""
    folder = FOLDER / f"rabbitmq-{release}"
    if not folder.exists():
        half = folder.with_name(folder.name + ".half")
        shutil.rmtree(half, ignore_errors=True)
        half.parent.mkdir(parents=True, exist_ok=True)
        # The lists of packages of an old release are no longer renewed, so they have expired.
        expired = '--aptopt=Acquire::Check-Valid-Until "false"'
        command = ["mmdebstrap", "--variant=minbase", expired, "--include=rabbitmq-server", release, str(half)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        # The node name ends with @localhost, which Erlang resolves in the chroot.
        (half / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
        half.rename(folder)
    return folder


def inside(root: Path, *command: str) -> list[str]:
    """Return the command that runs ``command`` in a root file system."""
    return ["unshare", "--mount", "sh", "-ec", _ENTER, str(root), str(Path(tempfile.gettempdir()).resolve()), *command]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.other_rabbitmq")
    parser.add_argument("release", metavar="RELEASE", nargs="?", choices=RELEASES, default=NEWEST)
    release = parser.parse_args().release
    if reason := obstacle():
        sys.exit(reason)
    print(file_system(release))
