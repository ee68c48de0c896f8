"""Settings of the gateway process: data, read once from flags and environment, handed down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from syncline_agent.gateway.isolation import KvReuse
from syncline_agent.gateway.routes import Kind


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Everything that the process is told."""

    engine_url: str
    engine_kind: Kind
    socket: Path
    """The agent's `gateway.sock`."""
    host: str = "127.0.0.1"
    port: int = 0
    advertise: str | None = None
    """Where clients outside of this node reach it; None tells nobody."""
    open_paths: Sequence[str] = ()
    """More of the engine's paths that clients may call, passed on as they are."""
    wait_seconds: float = 10.0
    """How long a request waits for its version where it does not say."""
    most_wait_seconds: float = 600.0
    most_waiting: int = 1024
    pin_seconds: float = 30.0
    """How long an `exact` request keeps commits out at most."""
    target: Path | None = None
    """The pool's target file; its bounds on lag hold in the place of those below."""
    max_version_lag: int | None = None
    max_lag_seconds: float | None = None
    kv_reuse: KvReuse = KvReuse.NEVER
    """Whether callers may have sessions, which find keys and values of older versions."""
    most_body_bytes: int = 32 << 20
    most_answer_bytes: int = 64 << 20
    """Of an answer that is read whole to be labelled; a longer one goes on without a label."""
    head_seconds: float = 60.0
    """What a client has to send a request's head, and how long an idle connection is kept."""
    body_seconds: float = 60.0
    """How long a body may stand still."""
    stall_seconds: float = 300.0
    """How long a client may not read at all."""
    connect_seconds: float = 20.0
    state_seconds: float = 0.5
    """How often the agent's state is read."""
    log_format: str = "console"
    log_level: str = "info"
