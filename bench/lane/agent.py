"""The agent's socket, served as a process: `python -m bench.lane.agent NODE_DIR`. Version 1 is applied and stays."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

from syncline_agent.testing.lanes import AgentHere


async def main(node_dir: Path) -> None:
    """For ever."""
    agent = AgentHere(node_dir / "gateway.sock")
    agent.find(1)
    await agent.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))
