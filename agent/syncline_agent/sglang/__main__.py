"""`python -m syncline_agent.sglang URL`: arm the SGLang server at URL, which was started with
`--custom-weight-loader syncline_agent.sglang.loader.arm` and the arm's variables in its environment.

Exit status: 0 when each rank has been armed or has said to the agent why not, 2 when the server cannot be told to.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx

from syncline.errors import SynclineError
from syncline_agent.reload.routes import Routes
from syncline_agent.sglang.starting import arm_server


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m syncline_agent.sglang", description="Arm an SGLang server.")
    parser.add_argument("url", metavar="URL", help="where the server answers")
    url = parser.parse_args(arguments).url
    key = os.environ.get("SYNCLINE_ENGINE_KEY_FILE")
    try:
        with httpx.Client(trust_env=False) as client:
            arm_server(Routes(url, client, key_file=Path(key) if key else None))
    except SynclineError as error:
        print(f"syncline_agent.sglang: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
