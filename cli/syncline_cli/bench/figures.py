"""Bits a change of a step, or of several as one: every codec with all chunk bytes, and beside it manifest, peers and bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from syncline.codecs.registry import CODECS
from syncline.delta import CodecChoice, DeltaEncoder, EncodedDelta, digest_tensor
from syncline.wire.chunk import parse
from syncline.wire.digest import total
from syncline.wire.limits import CODEC_CONTEXT, CODEC_NAMES, CODEC_RAW
from syncline.wire.records import VersionManifest, pack_digests
from syncline.wire.tiling import Tiling
from syncline_cli.bench import bounds
from syncline_cli.bench.peers import PEERS
from syncline_cli.bench.scales import MOVES, moves_of_scales
from syncline_cli.bench.views import View, flattened

CHOSEN = "chosen"
"""Not one codec: what the publisher takes when nothing is forced."""
CONTEXT = CODEC_NAMES[CODEC_CONTEXT]
CODECS_SHOWN = (CHOSEN, CONTEXT, *(codec.name for codec in CODECS.values() if codec.id != CODEC_RAW))
BOUND = "bound: (context, step)"
BOUND_NIBBLE = "bound: (nibble, step)"
BOUND_SCALE = "bound: (context, move of its scale, step)"
BOUND_XOR = "bound: position + XOR"
BOUND_HISTORY = "bound: with history"


@dataclass(frozen=True, slots=True)
class Figures:
    """Sums over steps."""

    units: int
    changed: int
    bits: dict[str, float] = field(default_factory=dict[str, float])
    """Spent on all changes, by format or bound."""
    spent: dict[str, int] = field(default_factory=dict[str, int])
    """Bytes of the chosen delta, by what they are for; they sum to its chunks."""
    manifest_bytes: int = 0
    by_context: int = 0
    """Changes that the publisher's own choice sent by `context`."""
    steps: int = 1

    @property
    def share(self) -> float:
        return self.changed / self.units if self.units else 0.0

    def a_change(self, name: str) -> float:
        """Bits a change; not a number where nothing changed."""
        return self.bits[name] / self.changed if self.changed else float("nan")

    def to_bound(self, name: str) -> float:
        """How many times the bound of the same contexts."""
        return self.bits[name] / self.bits[BOUND] if self.bits[BOUND] else float("nan")

    @classmethod
    def together(cls, steps: Sequence[Self]) -> Self:
        """Of several steps as one."""
        return cls(
            sum(step.units for step in steps),
            sum(step.changed for step in steps),
            {name: sum(step.bits[name] for step in steps) for name in steps[0].bits},
            {name: sum(step.spent[name] for step in steps) for name in steps[0].spent},
            sum(step.manifest_bytes for step in steps),
            sum(step.by_context for step in steps),
            sum(step.steps for step in steps),
        )


def measure(old: View, new: View, *, history: bounds.History | None = None) -> Figures:
    """One step in every format. `history` is that of the steps before it, for a view of one dtype."""
    flat = flattened(old, new)
    deltas = {name: Encoded.between(old, new, codec=None if name == CHOSEN else name) for name in CODECS_SHOWN}
    bits = {name: 8.0 * delta.size_bytes for name, delta in deltas.items()}
    bits |= {name: 8.0 * sum(size(step) for step in flat if step.positions.size) for name, size in PEERS.items()}
    bits |= {BOUND_XOR: bounds.position_and_flip(flat), BOUND: bounds.context_and_step(flat)}
    if any(step.dtype == "F4" for step in flat):
        bits[BOUND_NIBBLE] = bounds.nibble_and_step(flat)
    if moves := moves_of_scales(old, new):
        bits[BOUND_SCALE] = bounds.scale_and_step(old, new, moves=moves, kinds=MOVES)
    if history is not None:
        (only,) = flat
        bits[BOUND_HISTORY] = history.bits(only)
    chosen = deltas[CHOSEN]
    return Figures(
        units=old.table.units,
        changed=sum(step.positions.size for step in flat),
        bits=bits,
        spent=chosen.spent(),
        manifest_bytes=manifest_bytes(new, chosen.delta),
        by_context=chosen.delta.statistics.codecs.get(CONTEXT, 0),
    )


@dataclass(frozen=True, slots=True)
class Encoded:
    """A delta and its chunks."""

    delta: EncodedDelta
    chunks: list[bytes]

    @classmethod
    def between(cls, old: View, new: View, *, codec: str | None) -> Self:
        """Between two views of one table, by one codec or by the publisher's own choice."""
        chunks: list[bytes] = []
        encoder = DeltaEncoder(
            old.table,
            Tiling(),
            nonce=lambda: bytes(16),
            sink=lambda _, data: chunks.append(data),
            choice=CodecChoice(forced=codec),
        )
        for tensor, (before, after) in enumerate(zip(old.units, new.units, strict=True)):
            encoder.add(tensor, before, after)
        return cls(encoder.finish(), chunks)

    @property
    def size_bytes(self) -> int:
        return sum(len(data) for data in self.chunks)

    def spent(self) -> dict[str, int]:
        """Bytes of the chunks, by what they are for."""
        parsed = [parse(data) for data in self.chunks]
        tables = sum(len(table.data) for chunk in parsed for table in chunk.tables)
        payloads = sum(len(section.frames.payloads) for chunk in parsed for section in chunk.sections)
        return {"tables": tables, "headers and sums": self.size_bytes - tables - payloads, "payloads": payloads}


def manifest_bytes(view: View, delta: EncodedDelta) -> int:
    """Bytes of the version's manifest, as a publisher writes it."""
    digests = [digest_tensor(spec, units) for spec, units in zip(view.table.tensors, view.units, strict=True)]
    manifest = VersionManifest(
        run="bench",
        lineage="00" * 16,
        view="main",
        version=2,
        digest=total(digests).hex,
        writer="00" * 16,
        nonce="00" * 16,
        created_ms=1_700_000_000_000,
        epoch=1,
        parent=1,
        base=1,
        step=1,
        tensors=view.table.ref(),
        tensor_digests=pack_digests(digests),
        chunks=delta.chunks,
        anchor=None,
        statistics=delta.statistics,
    )
    return len(manifest.encode())
