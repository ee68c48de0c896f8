"""A trainer's side of the request lane: asks a whole fleet, on whichever replica serves the version that is wanted, now.

    async with open_fleet("s3://bucket/prefix?endpoint=…", run="my-run") as fleet:
        client = openai.AsyncOpenAI(base_url=fleet.base_url, api_key="none", http_client=fleet.http, max_retries=0)

It reads the store and asks gateways; it writes nothing, and decides nothing of what is served: each gateway judges for itself.
"""

from syncline.errors import NoReplica
from syncline.route.fleet import Fleet, FleetSettings
from syncline.route.opening import open_fleet
from syncline.route.sources import Heartbeats, Listed, Source
from syncline.route.wishes import Wish

__all__ = ["Fleet", "FleetSettings", "Heartbeats", "Listed", "NoReplica", "Source", "Wish", "open_fleet"]
