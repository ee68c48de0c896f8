"""What a run of the benchmark came to, in lines. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Facts = Mapping[str, Any]


def report(facts: Facts) -> str:
    """Of each case by name; what is no case is an error of the whole."""
    lines: list[str] = []
    for name, told in facts.items():
        lines += _case(name, told) if isinstance(told, Mapping) else [f"{name}: {str(told).strip().splitlines()[-1]}"]
    return "\n".join(lines)


def _case(name: str, case: Facts) -> Iterator[str]:
    ranks = case.get("ranks", 1)
    yield f"{name}: {case['weights_bytes'] / 1e9:.2f} GB of weights{f' on {ranks} ranks' if ranks > 1 else ''}"
    if "probed_seconds" in case:
        yield (
            f"  start: layout probed in {_listed(case['probed_seconds'], 1, ' s')}, weights loaded in"
            f" {_listed(case['loaded_seconds'], 1, ' s')}, serving after {case['start_seconds']:.0f} s (cases start side by side)"
        )
        yield from (f"  vLLM: {told}" for told in [*case["kernels"], *case["graphs"]])
    yield from (f"  refused: {told}" for told in case.get("refused", []))
    yield from _changes(case.get("changes", []))
    yield from _commits(case.get("commits", []))
    if "streams_ended" in case:
        yield f"  streamed requests ended: {case['streams_ended']}"
    yield from _sleep(case)
    if "again_as_before" in case:
        yield f"  a version that was gone back to draws as before, bit for bit: {case['again_as_before']}"
    if "reloads" in case:
        yield f"  reloads of weights: {case['reloads']}"
    for version, equal in case.get("equal_to_fresh", {}).items():
        yield f"  version {version}: as a vLLM started on it draws: {_counted(equal)}"
    if "compiled_alike" in case:
        yield f"  two vLLMs that compiled their model by default, on one version, draw alike: {_counted(case['compiled_alike'])}"
    if "versions_differ" in case:
        yield f"  versions drawn from that differ: {case['versions_differ']}"
    if "failed" in case:
        yield f"  failed: {case['failed'].strip().splitlines()[-1]}"


def _changes(changes: Sequence[Facts]) -> Iterator[str]:
    if changes:
        ways = ", ".join(f"{told['version']} by {told['apply_path']}" for told in changes)
        equal = sum(told["digest_equal"] for told in changes)
        yield f"  beside vLLMs that start: versions {ways}; digest of live memory equal {equal} of {len(changes)}"
        first = changes[0]
        if first["stage_seconds"] is not None:
            yield f"  first delta: staged in {first['stage_seconds']:.1f} s, gate {1e3 * first['gate_pause_seconds']:.1f} ms"


def _commits(commits: Sequence[Facts]) -> Iterator[str]:
    for path in ("delta", "undo", "checkpoint", "reload"):
        own = [commit for commit in commits if commit["apply_path"] == path]
        if not own:
            continue
        pauses = np.array([pause for commit in own for pause in commit["pauses"]])
        gates = [commit["gate_pause_seconds"] for commit in own]
        yield (
            f"  {len(own)} by {path}, {sum(commit['digest_equal'] for commit in own)} with the digest of live memory equal:"
            f" gate {_listed(gates, 1e3, ' ms')}; streams half {1e3 * np.quantile(pauses, 0.5):.1f} ms, p99"
            f" {1e3 * np.quantile(pauses, 0.99):.1f} ms, most {1e3 * pauses.max():.1f} ms"
        )
        staged = [commit for commit in own if commit["stage_seconds"] is not None]
        if staged:
            yield (
                f"    staged in {_listed([commit['stage_seconds'] for commit in staged], 1, ' s')};"
                f" at most {max(commit['extra_bytes'] for commit in staged) / 1e6:.0f} MB of device memory beside the weights for"
                f" {max(commit['changed'] for commit in staged):,} changes"
            )


def _sleep(case: Facts) -> Iterator[str]:
    if "asleep" in case:
        asleep = case["asleep"]
        yield f"  asleep: version {asleep['applied']['version']}, {asleep['lag_versions']} behind: {asleep['error']}"
    if "wake_seconds" in case:
        yield (
            f"  woken and swept in {1e3 * case['wake_seconds']:.0f} ms, then followed by {case['woken_path']}, digest of live"
            f" memory equal: {case.get('woken_digest_equal')}"
        )
    if "served_without_weights" in case:
        yield f"  after a sleep that threw the weights away requests ended with {case['served_without_weights']}"
    if "healed_seconds" in case:
        steps = ", ".join(f"{step} version {number}" for step, number in case["healing"])
        yield (
            f"  then: {steps}, in {case['healed_seconds']:.1f} s; digest of live memory equal: {case['healed_digest_equal']}"
        )


def _counted(alike: Mapping[str, Sequence[bool]]) -> str:
    return ", ".join(f"{part} {sum(each)} of {len(each)}" for part, each in alike.items())


def _listed(numbers: Sequence[float], scale: float, unit: str) -> str:
    shown = sorted(scale * number for number in numbers)
    if not shown:
        return "no time that was told"
    if len(shown) == 1:
        return f"{shown[0]:.2f}{unit}"
    return f"{shown[0]:.2f} to {shown[-1]:.2f}{unit}"
