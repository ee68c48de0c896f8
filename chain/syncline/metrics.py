"""Every metric of every process: name, help, labels, buckets — and nothing else (DESIGN section 10).

Labels are bounded: run, view, pool, node, phase, reason, source, path, codec, outcome, operation, begun; never a version or an
object key. A process makes one `Metrics(registry)`, a gateway one `GatewayFamilies(registry)`, and hands it down; tests make
their own registry.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
PAUSE_SECONDS = (0.0003, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.3, 1, 3)
SPANS = (1, 2, 3, 4, 6, 8, 16)
LABELS = frozenset(
    {"run", "view", "pool", "node", "phase", "reason", "source", "path", "codec", "outcome", "operation", "begun"}
)


class Metrics:
    """All metric families on one registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        r = self.registry = registry or CollectorRegistry()
        run = ("run", "view")
        pool = ("run", "view", "pool")
        # Publish
        self.head_version = Gauge("syncline_head_version", "Newest committed version.", run, registry=r)
        self.changed_ratio = Gauge(
            "syncline_publish_changed_ratio", "Share of units that the last version changed.", run, registry=r
        )
        self.payload_bytes = Counter(
            "syncline_publish_payload_bytes", "Chunk bytes of published deltas.", run, registry=r
        )
        self.full_bytes = Gauge("syncline_publish_full_bytes", "Bytes of the whole view.", run, registry=r)
        self.bits_per_change = Gauge(
            "syncline_publish_bits_per_change", "Chunk bits a changed unit of the last version.", run, registry=r
        )
        self.nonfinite = Counter(
            "syncline_publish_nonfinite_values", "NaN or Inf values in published changes.", run, registry=r
        )
        self.codec_changes = Counter("syncline_publish_changes", "Changed units by codec.", (*run, "codec"), registry=r)
        self.publish_seconds = Histogram(
            "syncline_publish_seconds", "Seconds of a publish by phase.", (*run, "phase"), buckets=SECONDS, registry=r
        )
        self.published = Counter("syncline_published_versions", "Versions committed by this writer.", run, registry=r)
        self.chain_length = Gauge("syncline_chain_length", "Deltas since the newest anchor.", run, registry=r)
        self.anchors = Counter("syncline_anchors_written", "Anchors committed.", run, registry=r)
        self.skips = Counter("syncline_skips_written", "Skip deltas committed.", run, registry=r)
        self.fenced = Gauge("syncline_publish_fenced", "1 when a higher epoch stopped this writer.", run, registry=r)
        self.collected = Counter("syncline_collected_objects", "Objects deleted by retention.", run, registry=r)
        self.retained_bytes = Gauge("syncline_retained_bytes", "Bytes that retention keeps.", run, registry=r)
        self.conditional_writes = Gauge(
            "syncline_store_conditional_writes",
            "1 when the store honours conditions, 0 in single-writer mode.",
            registry=None,  # until there is a value: without labels it would read 0 in every process
        )
        self.source_errors = Counter(
            "syncline_source_errors", "Checkpoints that could not be read.", (*run, "reason"), registry=r
        )
        # Follow
        self.applied_version = Gauge(
            "syncline_applied_version", "Version that the replica serves.", (*pool, "node"), registry=r
        )
        self.lag_versions = Gauge(
            "syncline_lag_versions", "Versions between applied and target.", (*pool, "node"), registry=r
        )
        self.lag_seconds = Gauge(
            "syncline_lag_seconds", "Age of the oldest version not applied yet.", (*pool, "node"), registry=r
        )
        self.proven = Gauge("syncline_proven", "1 when the applied version is proven.", (*pool, "node"), registry=r)
        self.phase_seconds = Histogram(
            "syncline_follow_phase_seconds",
            "Seconds of a sync by phase.",
            (*pool, "phase"),
            buckets=SECONDS,
            registry=r,
        )
        self.pause_seconds = Histogram(
            "syncline_follow_pause_seconds",
            "Seconds that a commit held the engine.",
            pool,
            buckets=PAUSE_SECONDS,
            registry=r,
        )
        self.sync_seconds = Histogram(
            "syncline_follow_sync_seconds",
            "Seconds from a version's commit to serving it.",
            pool,
            buckets=SECONDS,
            registry=r,
        )
        self.fetched_bytes = Counter(
            "syncline_follow_fetched_bytes", "Bytes fetched by source.", (*pool, "source"), registry=r
        )
        self.source_head = Gauge(
            "syncline_follow_source_head_version", "Newest version that a source holds.", (*pool, "source"), registry=r
        )
        self.applied_versions = Counter(
            "syncline_follow_applied_versions", "Versions applied by path.", (*pool, "path"), registry=r
        )
        self.follow_retries = Counter("syncline_follow_retries", "Retries by reason.", (*pool, "reason"), registry=r)
        self.refusals = Counter(
            "syncline_follow_refusals", "Versions refused by reason.", (*pool, "reason"), registry=r
        )
        self.digest_failures = Counter(
            "syncline_digest_failures", "Digests that did not match.", (*pool, "phase"), registry=r
        )
        self.staged_bytes = Gauge("syncline_staged_bytes", "Bytes of staged changes.", (*pool, "node"), registry=r)
        # Store
        self.store_seconds = Histogram(
            "syncline_store_seconds", "Seconds of a store call.", ("operation",), buckets=SECONDS, registry=r
        )
        self.store_errors = Counter(
            "syncline_store_errors", "Failed store calls by reason.", ("operation", "reason"), registry=r
        )
        self.store_bytes = Counter("syncline_store_bytes", "Bytes moved by store calls.", ("operation",), registry=r)
        self.store_retries = Counter("syncline_store_retries", "Store calls tried again.", ("operation",), registry=r)
        # Engine and requests
        self.requests = Counter("syncline_requests", "Requests by outcome.", ("outcome",), registry=r)
        self.request_spans = Histogram(
            "syncline_request_spans", "Versions that produced one answer.", buckets=(1, 2, 3, 4, 6, 8), registry=r
        )
        self.tokens = Counter("syncline_generated_tokens", "Tokens generated.", registry=r)
        self.sweep_seconds = Histogram(
            "syncline_sweep_seconds", "Seconds of a digest sweep.", buckets=SECONDS, registry=r
        )
        self._probed = False

    def store_probed(self, *, several_writers: bool) -> None:
        """What a probe of the store found; from here on `conditional_writes` is shown."""
        self.conditional_writes.set(several_writers)
        if not self._probed:
            self.registry.register(self.conditional_writes)
            self._probed = True


class GatewayFamilies:
    """All metric families of a request gateway on one registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        r = self.registry = registry or CollectorRegistry()
        self.requests = Counter(
            "syncline_gateway_requests", "Requests by outcome and reason.", ("outcome", "reason"), registry=r
        )
        self.waited_seconds = Histogram(
            "syncline_gateway_waited_seconds",
            "Seconds that a request waited for a version, or for its pool's bounds, until it was let in or refused.",
            buckets=SECONDS,
            registry=r,
        )
        self.spans = Histogram(
            "syncline_gateway_request_spans",
            "Spans of versions in an answer; of several choices, in the one that has most.",
            buckets=SPANS,
            registry=r,
        )
        self.answered_version = Gauge(
            "syncline_gateway_answered_version",
            "Version that the last token of the newest answer came from.",
            registry=r,
        )
        self.queue = Gauge("syncline_gateway_waiting", "Requests that wait to be let in.", registry=r)
        self.in_flight = Gauge(
            "syncline_gateway_in_flight",
            "Requests at the engine by how many versions before the applied one was when they were let in.",
            ("begun",),
            registry=r,
        )
        self.ready = Gauge("syncline_gateway_ready", "1 while what is served is proven.", registry=r)
        self.lag_versions = Gauge(
            "syncline_gateway_lag_versions", "Versions between applied and target; NaN while nobody knows.", registry=r
        )
        self.lag_seconds = Gauge(
            "syncline_gateway_lag_seconds",
            "Seconds that what is served is behind at most; NaN while nobody knows.",
            registry=r,
        )
        self.target_error = Gauge(
            "syncline_gateway_target_error", "1 while the pool's target file as it stands is not in force.", registry=r
        )
