"""Settings of the agent process: data, read once from flags and environment, handed down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from syncline_agent.heartbeat import HeartSettings


@dataclass(frozen=True, slots=True)
class FollowSettings:
    """How the follower paces itself."""

    poll_seconds: float = 1.0
    poll_jitter: float = 0.4
    """A poll waits `poll_seconds` and up to this share more: with heartbeats still under one store request a second."""
    veto_seconds: float = 10.0
    """Vetoes are listed so often, in the place of a head poll, and always before a commit."""
    backoff_seconds: float = 0.5
    backoff_max_seconds: float = 10.0
    keep_chunk_bytes: int = 4 << 30
    """Chunk files kept for the node checkpoint's next advance; beyond this they are fetched again when it comes."""
    advance_every: int = 8
    """The node checkpoint is at most so many versions behind what is applied, once the background has come around."""
    advance_seconds: float = 300.0
    serve_unproven: bool = False
    """An engine whose weights cannot be proven from outside counts as in service. Said in `/status`, and never the
    default: what is not proven is not served."""

    def backoff(self, failures: int) -> float:
        """The longest wait after so many failures in a row."""
        return min(self.backoff_max_seconds, self.backoff_seconds * 2 ** min(max(failures - 1, 0), 10))


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Everything that the process is told."""

    stores: Sequence[str]
    """URLs, nearest first: [mirror, origin]."""
    target: Path
    node_dir: Path
    cluster: str = "local"
    namespace: str = "default"
    pool: str = "default"
    node: str = "node-0"
    host: str = "127.0.0.1"
    port: int = 0
    distributor: str | None = None
    """Where the run's distributor answers, if this node reaches it: new versions are then heard of at once."""
    consumers_store: str | None = None
    """Where heartbeats and leases go; the last of `stores` unless told otherwise."""
    fetch_workers: int = 4
    engine: str = "arm"
    """How versions come into the engine: `arm`, in place, by what lives inside it; `reload`, by its own reload route."""
    engine_url: str | None = None
    """Where the engine's routes answer. With `arm`: what is taken where the arm refuses the engine's layout."""
    engine_kind: str = "vllm"
    engine_node_dir: Path | None = None
    """The node directory as the engine sees it, where that is another path."""
    engine_key_file: Path | None = None
    """A bearer token that the engine's routes ask for."""
    token: str = ""
    """What an arm must present; empty takes what stands in `arm.token` of the node directory, made at random if it is
    not there."""
    log_format: str = "console"
    log_level: str = "info"
    follow: FollowSettings = field(default_factory=FollowSettings)
    heart: HeartSettings = field(default_factory=HeartSettings)

    @property
    def socket(self) -> Path:
        return self.node_dir / "arm.sock"

    @property
    def gateway_socket(self) -> Path:
        """Where a gateway beside the engine asks."""
        return self.node_dir / "gateway.sock"
