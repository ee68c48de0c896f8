"""What `gpu_serve` found as lines of text, each figure with what it is of and the bound that it is held against. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

PAUSE_MS = {"share_0.00085": 10.0, "share_0.01": 20.0}
OVERHEAD_S = 1.0
STAGING_LOSS, SWEEPING_LOSS = 0.05, 0.02
MEMORY_SHARE = 0.01
AGENT_BYTES = 1 << 30
PROBE_SHARE = 0.1

Facts = Mapping[str, Any]


def table(facts: Facts) -> str:
    """All of it; what was not reached is left out."""
    lines = [f"{facts['bytes'] / 1e9:.2f} GB of BF16, {facts['layers']} layers", ""]
    for name in PAUSE_MS:
        if name in facts:
            lines += [*_share(facts, name), ""]
    for name in (name for name, own in facts.items() if isinstance(own, dict) and own.get("loss") is not None):
        lines += _loss(facts, name)
    for part in (_memory, _agent, _undo, _beside):
        lines += part(facts)
    return "\n".join(lines)


def _row(what: str, value: float, unit: str, bound: float | None = None, words: str = "") -> str:
    held = "" if bound is None else f"  <= {bound:g} {unit}: {'met' if value <= bound else 'MISSED'}"
    return f"{what:58}{value:10.3f} {unit}{held}{f'  ({words})' if words else ''}"


def _share(facts: Facts, name: str) -> Iterator[str]:
    own, steps = facts[name], facts[name]["steps"]
    changed = sum(s["changed"] for s in steps) / sum(s["units"] for s in steps)
    payload = median(s["payload_bytes"] for s in steps)
    yield f"{changed:.3%} changed a step, {payload / 1e6:.1f} MB a delta, {len(steps)} versions"
    if own.get("pauses"):
        found = own["pauses"]
        yield _row("token gap of a stream, median", 1e3 * found["median_gap"], "ms", words="where no commit falls")
        many = f"{found['count']} gaps that a commit falls into, less the stream's median gap"
        yield _row("pause as a request sees it, p99", 1e3 * found["p99"], "ms", PAUSE_MS[name], many)
        yield _row("  median", 1e3 * found["half"], "ms")
        yield _row("  longest", 1e3 * found["most"], "ms")
    engine = [1e3 * s["sync"]["pause_seconds"] for s in steps]
    yield _row("engine's own pause, longest", max(engine), "ms", words=f"median {median(engine):.3f}")
    kernels = _kernels(facts, own["window"])
    if kernels:
        yield _row("kernels of a commit, longest", max(kernels), "ms", words=f"median {median(kernels):.3f}")
    yield from _way(own)
    if "tokens_a_second" in own:
        before = own["tokens_a_second_before"]
        yield _row("tokens a second while versions come", own["tokens_a_second"], "/s", words=f"before: {before:.0f}")


def _way(own: Facts) -> Iterator[str]:
    steps: Sequence[Facts] = own["steps"]
    moved = [s["seconds"].get("upload", 0.0) + s["sync"]["seconds"].get("fetch", 0.0) for s in steps]
    served = own.get("publish_to_serving")
    if served:
        yield _row("publish() called -> first token by the version, median", median(served), "s")
        over = [all_ - way for all_, way in zip(served, moved, strict=False)]
        yield _row("  without the transfer, median", median(over), "s", OVERHEAD_S, f"longest {max(over):.3f}")
    rate = median(s["payload_bytes"] / max(way, 1e-9) for s, way in zip(steps, moved, strict=True)) / 1e6
    yield _row("  transfer: upload and fetch, median", median(moved), "s", words=f"{rate:.0f} MB/s of payload")
    phases = {f"publish: {phase}": [s["seconds"][phase] for s in steps] for phase in steps[0]["seconds"]}
    phases |= {f"follow: {p}": [s["sync"]["seconds"].get(p, 0.0) for s in steps] for p in steps[0]["sync"]["seconds"]}
    for name, seconds in phases.items():
        yield _row(f"  {name}, median", median(seconds), "s")


def _kernels(facts: Facts, window: Sequence[float]) -> list[float]:
    """Milliseconds of each commit's kernels."""
    seen = facts.get("seen", {})
    commits = [c for c in seen.get("took", {}).get("scatter", []) if window[0] <= c[0] <= window[1]]
    sums = [sum(ms for when, ms in seen["writes_ms"] if began <= when <= ended) for began, ended in commits]
    return [found for found in sums if found]


def _loss(facts: Facts, name: str) -> Iterator[str]:
    own = facts[name]
    seconds = sum(end - begin for begin, end in own["during"])
    bound = {"staging": STAGING_LOSS, "sweeping": SWEEPING_LOSS}.get(name)
    words = f"{len(own['during'])} turns, {seconds:.1f} s, against as long beside"
    yield _row(f"{name.replace('_', ' ')}: share of tokens lost", own["loss"], "", bound, words)
    if "times" in own:
        each = seconds / len(own["during"]) / own["times"]
        yield _row("  a stage", each, "s", words=f"generation loses {own['loss'] * each:.4f} s of itself a version")


def _memory(facts: Facts) -> Iterator[str]:
    if not {"memory", "seen"} <= facts.keys() or not facts["memory"]["alone"]["most"]:
        return
    extra = facts["memory"]["following"]["most"] - facts["memory"]["alone"]["most"]
    staged = max(facts["seen"]["staged_bytes"])
    bound = (MEMORY_SHARE * facts["bytes"] + staged) / 1e9
    attached = facts["engine_at_start"]["attached_bytes"] / 1e9
    words = f"of it for good {attached:.3f}; a staged delta is {staged / 1e9:.3f}"
    yield _row("arm's device memory at most, beyond generation's", extra / 1e9, "GB", bound, words)


def _agent(facts: Facts) -> Iterator[str]:
    if "agent" in facts:
        delta = max(s["payload_bytes"] for name in PAUSE_MS for s in facts.get(name, {}).get("steps", []))
        own = facts["agent"]
        words = f"without files that it maps {own['anonymous'] / 1e9:.3f}"
        yield _row("agent's memory at most", own["resident"] / 1e9, "GB", (AGENT_BYTES + delta) / 1e9, words)


def _undo(facts: Facts) -> Iterator[str]:
    told = [one["first"] - one["told"] for one in facts.get("undo", []) if one.get("first")]
    if told:
        yield _row("told to go back -> first token by the version before", max(told), "s", 1.02, f"{len(told)} times")


def _loading(facts: Facts) -> float:
    """Seconds of the engine's load."""
    took = facts["engine_at_start"]["took"]
    return sum(end - begin for begin, end in took["load"]) - sum(
        end - begin for name in ("warm_up", "prove") for begin, end in took.get(name, [])
    )


def _beside(facts: Facts) -> Iterator[str]:
    own = facts.get("beside", {})
    if "loading" in own:
        load = own["loading"]
        yield ""
        yield _row(
            "probing, of the time that a load takes", load["probe_seconds"] / load["load_seconds"], "", PROBE_SHARE
        )
        yield _row("  probing", load["probe_seconds"], "s", words=f"a load {load['load_seconds']:.3f}")
        yield _row(
            "full reload from the page cache", load["reload_seconds"], "s", words="safetensors into live parameters"
        )
    for share in (name for name in own if name.startswith("peers_")):
        peer = own[share]
        yield f"peers at {peer['share_changed']:.3%} changed, measured on {peer['part_gb']:.2f} GB and scaled"
        if "lz4_gb" in peer:
            words = f"{peer['lz4_gb']:.3f} GB to send"
            yield _row(
                "  XOR mask by nvCOMP LZ4: expand, then XOR", peer["lz4_decode_ms"] + peer["xor_ms"], "ms", words=words
            )
        yield _row("  dense XOR alone, in the pause", peer["xor_ms"], "ms")
        yield _row("  index + value scatter", peer["sparse_ms"], "ms", words=f"{peer['sparse_gb']:.3f} GB to send")
