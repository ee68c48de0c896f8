"""SGLang's own routes as the arm's gate: stands between two steps with none in flight on any rank, and goes on.

- `/pause_generation` (`retract`, `in_place`) reaches every rank's scheduler at the same turn of its loop, and is answered before
  that. What says that all stand is `/weights_checker`: each scheduler comes to it in its turn, waits for its device,
  and rank 0 answers when all have met. With every tensor left out it hashes none but quantized ones.
- `in_place` leaves running requests where they are, and the cache cannot be flushed; `retract` puts them back into the queue, and it can.
- Nothing that a running scheduler produces can be kept inside by a route: steps go on at `publish`, when what was written
  has been read back, and not before.
- No route drains, and none fails requests that come in: while the gate is failed new ones wait.

Knows no weights. It belongs to the process of rank 0, and is called by the arm's threads only, never by the scheduler's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline.errors import EngineUnavailable, SynclineError
from syncline.versions import Policy
from syncline_agent.reload.base import done
from syncline_agent.reload.routes import Routes
from syncline_agent.sglang.settings import KvPolicy

ROUTE_S = 30.0
PATIENCE_S = 30.0
"""How long a hold is kept for a write that does not come."""
LOOK_S = 0.5
NO_TENSOR = [""]
"""A part of every tensor's name: what is skipped by name is then all."""


class _State(Enum):
    OPEN = "open"
    HELD = "held"
    WRITING = "writing"
    WRITTEN = "written"
    FAILED = "failed"


class SglangGate:
    """One server's gate."""

    def __init__(
        self,
        routes: Routes,
        *,
        ranks: int,
        kv: KvPolicy,
        clock: Clock,
        log: FilteringBoundLogger,
        spans: Callable[[], Mapping[str, int]] = dict[str, int],
        failed: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`spans`: output tokens by request while the scheduler stands, where somebody sees it. `failed`: nothing is served
        before the first `prove`; `pause_first` sees to it."""
        self._routes = routes
        self._ranks = ranks
        self._kv = kv
        self._clock = clock
        self._log = log
        self._spans = spans
        self._patience_s = patience_s
        self._lock = threading.RLock()
        """Held through the calls of one change of state: a release waits until a hold stands, and ends it then."""
        self._state = _State.FAILED if failed else _State.OPEN
        self._aborts = False
        self._was_failed = False
        """Before the hold."""
        self._held_at = 0.0
        self._timer: threading.Timer | None = None

    def hold(self, policy: Policy) -> Mapping[str, int]:
        if policy is Policy.DRAIN:
            raise EngineUnavailable("SGLang has no route that drains requests; set the policy keep or abort")
        with self._lock:
            failed = self._state is _State.FAILED
            if self._state not in (_State.OPEN, _State.FAILED):
                raise EngineUnavailable(f"the engine is {self._state.value} already; end that first")
            self._held_at = self._clock.monotonic()
            try:
                self._stand(in_place=policy is Policy.KEEP and self._kv is KvPolicy.KEYED)
                spans = dict(self._spans())
            except Exception:  # whatever it was: an engine that nobody writes to must not stand
                if not failed:
                    self._go_on_after_trouble()
                raise
            self._aborts = policy is Policy.ABORT
            self._state = _State.HELD
            self._was_failed = failed
            self._timer = threading.Timer(self._patience_s, self.release)
            self._timer.daemon = True
            self._timer.start()
            return spans

    def ended(self) -> Sequence[str] | None:
        return None  # no route says it; SGLang's own answers say which versions their tokens came from

    def write(self) -> None:
        with self._lock:
            if self._state is not _State.HELD:
                raise EngineUnavailable("the hold has ended; hold again")
            self._stop_timer()
            self._state = _State.WRITING

    def resume(self, version: int) -> float:
        with self._lock:
            if self._state is not _State.WRITING:
                raise EngineUnavailable(f"nothing was written: the engine is {self._state.value}")
            if self._aborts:
                self._abort_all()
            self._renew(version)
            self._state = _State.WRITTEN
            return self._clock.monotonic() - self._held_at

    def publish(self) -> None:
        with self._lock:
            if self._state is _State.WRITTEN:
                self._go_on()

    def release(self) -> None:
        with self._lock:
            if self._state is _State.HELD:
                self._stop_timer()
                self._state = _State.FAILED if self._was_failed else _State.OPEN
                if not self._was_failed:
                    self._go_on_after_trouble()

    def fail(self, reason: str) -> None:
        with self._lock:
            self._stop_timer()
            self._log.error("out of service", reason=reason)
            self._state = _State.FAILED
            # Also where it stands: a request that stands in place could end with its next step only.
            done(self._routes.post("/pause_generation", ROUTE_S, {"mode": "retract"}), "pause")
            self._abort_all()

    def pause_first(self, stopping: threading.Event) -> None:
        """Of a gate that begins failed: pause as soon as the server answers, which comes after its ranks."""
        while not stopping.is_set():
            with self._lock:
                if self._state is not _State.FAILED:
                    return
                try:
                    done(self._routes.post("/pause_generation", ROUTE_S, {"mode": "retract"}), "pause")
                    return
                except SynclineError:
                    pass  # it is not up yet
            stopping.wait(LOOK_S)

    def prove(self, version: int) -> None:
        with self._lock:
            if self._state in (_State.FAILED, _State.WRITTEN):
                self._renew(version)
                self._go_on()
            elif self._state is _State.OPEN:
                self._stamp(version)

    def open(self) -> None:
        with self._lock:
            if self._state is _State.FAILED:
                self._go_on()
        self._log.warning("in service without Syncline: the agent cannot follow this engine in place")

    # --- what the calls are made of --------------------------------------------------------------------------------

    def _stand(self, *, in_place: bool) -> None:
        mode = "in_place" if in_place else "retract"
        done(self._routes.post("/pause_generation", ROUTE_S, {"mode": mode}), "pause")
        body = {"action": "checksum", "selector": "target", "skip_tensor_list": NO_TENSOR}
        met = done(self._routes.post("/weights_checker", ROUTE_S, body), "come to a stand").get("ranks")
        there = len(met) if isinstance(met, list) else 0
        if there != self._ranks:
            raise EngineUnavailable(f"{there} ranks came to a stand, the engine has {self._ranks}")

    def _renew(self, version: int) -> None:
        """Stamp what comes, and let nothing of older weights be found."""
        self._stamp(version)
        if self._kv is KvPolicy.FLUSH or self._state is _State.FAILED or self._was_failed:  # a key may outlive a commit
            done(self._routes.post("/flush_cache", ROUTE_S), "flush its cache")

    def _stamp(self, version: int) -> None:
        # SGLang notes the change at every request in flight: its responses say which tokens came from which version.
        body = {"new_version": str(version), "abort_all_requests": False}
        done(self._routes.post("/update_weight_version", ROUTE_S, body), "take the version's number")

    def _abort_all(self) -> None:
        done(self._routes.post("/abort_request", ROUTE_S, {"rid": "", "abort_all": True}), "abort its requests")

    def _go_on(self) -> None:
        done(self._routes.post("/continue_generation", ROUTE_S, {"torch_empty_cache": False}), "go on")
        self._state = _State.OPEN

    def _go_on_after_trouble(self) -> None:
        try:
            self._go_on()
        except Exception as error:  # of a closed client, too: in a timer's thread nobody would see it
            self._log.error("the engine was paused and does not go on", reason=str(error))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
