"""Adds the compiled modules to a wheel. hatchling runs this hook if ``HATCH_BUILD_HOOKS_ENABLE=true`` is set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledModules(BuildHookInterface[Any]):
    """Compiles before the wheel is built, and marks the wheel as specific to this Python and platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the modules.

        Args:
            version: kind of wheel. An editable wheel runs from the project's directory and contains no modules.
            build_data: hatchling's description of the wheel.
        """
        if version == "editable":
            return
        subprocess.run([sys.executable, Path(self.root, "deploy", "native.py")], check=True)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"][str(Path(self.root, "proxy/oxproxy/_native"))] = "oxproxy/_native"
