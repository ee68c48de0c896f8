"""Where HTTP is listened: an address that cannot be had is an error with a name, before anything else was started."""

from __future__ import annotations

from aiohttp import web

from syncline.errors import Rejected


async def listen(runner: web.AppRunner, host: str, port: int) -> tuple[str, int]:
    """Answer at `host`:`port` from here on; returns the address. Rejected when it is taken or is none of this machine."""
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        raise Rejected(
            f"cannot listen at {host}:{port}: {error.strerror or error}; give another --port, or --host"
        ) from error
    address = runner.addresses[0]
    return str(address[0]), int(address[1])
