"""Layouts found through loaders that fuse, stack, slice, pad, transpose, convert and shuffle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pytest
import torch

from syncline.errors import LayoutRefused
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_agent.arm.layout import Layout, shape_of
from syncline_agent.arm.probing import Probed, attach, probe
from syncline_agent.arm.spelling import DTYPES

Weights = Iterable[tuple[str, torch.Tensor]]
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def table_of(shapes: Mapping[str, tuple[str, list[int]]]) -> TensorTable:
    return TensorTable(
        tensors=[
            TensorSpec(name=name, dtype=kind, shape=shape, axis=0) for name, (kind, shape) in sorted(shapes.items())
        ]
    )


def checkpoint_of(table: TensorTable) -> dict[str, torch.Tensor]:
    """Random bits of every tensor of a table."""
    random = torch.Generator().manual_seed(3)
    found: dict[str, torch.Tensor] = {}
    for spec in table.tensors:
        raw = torch.randint(0, 256, (spec.units * spec.unit_bytes,), dtype=torch.uint8, generator=random)
        found[spec.name] = raw.view(DTYPES[spec.dtype]).reshape(shape_of(spec) if spec.shape else ())
    return found


def check_holds(table: TensorTable, probed: Probed, module: torch.nn.Module, held: Mapping[str, torch.Tensor]) -> None:
    """Every block reads, from live memory, what the checkpoint has in its box."""
    stores = attach(probed, [*module.parameters(), *module.buffers()])
    for block in probed.blocks:
        spec = table.tensors[block.tensor]
        store = stores[block.store]
        assert store is not None
        read = torch.as_strided(store, block.size, block.strides, store.storage_offset() + block.offset)
        source = held[spec.name].reshape(shape_of(spec)).view(read.dtype)
        box = tuple(slice(at, at + size) for at, size in zip(block.start, block.size, strict=True))
        assert torch.equal(source[box], read), (spec.name, block)


def probe_and_load(
    table: TensorTable, module: torch.nn.Module, load: Callable[[Weights], object]
) -> tuple[Probed, Layout]:
    """Probe, load real weights, and check that they are read back through what was found."""
    probed = probe(table, [*module.named_parameters(), *module.named_buffers()], load)
    held = checkpoint_of(table)
    with torch.no_grad():
        load(iter(held.items()))
    check_holds(table, probed, module, held)
    return probed, Layout.of(table, probed.blocks)


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.full(shape, 7.0).to(dtype), requires_grad=False)


class Fused(torch.nn.Module):
    """One layer of an attention block and an MLP as engines keep it: rows fused, columns sliced, for a rank of several."""

    def __init__(
        self, rank: int = 0, ranks: int = 1, hidden: int = 96, head: int = 8, heads: int = 8, kv: int = 2
    ) -> None:
        super().__init__()
        self.rank, self.ranks, self.head = rank, ranks, head
        self.q, self.kv = heads // ranks * head, max(1, kv // ranks) * head
        self.kv_rank = rank * kv // ranks if kv < ranks else rank
        self.inner = 160 // ranks
        self.qkv = empty(self.q + 2 * self.kv, hidden)
        self.o = empty(hidden, self.q)
        self.gate_up = empty(2 * self.inner, hidden)
        self.down = empty(hidden, self.inner)
        self.norm = empty(hidden)

    def load_weights(self, weights: Weights) -> None:
        for name, loaded in weights:
            if name in ("q", "k", "v"):
                rows = self.q if name == "q" else self.kv
                at = {"q": 0, "k": self.q, "v": self.q + self.kv}[name]
                first = (self.rank if name == "q" else self.kv_rank) * rows
                self.qkv.data[at : at + rows].copy_(loaded[first : first + rows])
            elif name in ("gate", "up"):
                at = 0 if name == "gate" else self.inner
                self.gate_up.data[at : at + self.inner].copy_(loaded.narrow(0, self.rank * self.inner, self.inner))
            elif name in ("o", "down"):
                parameter = getattr(self, name)
                columns = parameter.shape[1]
                parameter.data.copy_(loaded.narrow(1, self.rank * columns, columns))
            else:
                self.norm.data.copy_(loaded)


FUSED = table_of(
    {
        "q": ("BF16", [64, 96]),
        "k": ("BF16", [16, 96]),
        "v": ("BF16", [16, 96]),
        "o": ("BF16", [96, 64]),
        "gate": ("BF16", [160, 96]),
        "up": ("BF16", [160, 96]),
        "down": ("BF16", [96, 160]),
        "norm": ("BF16", [96]),
    }
)


def test_fused_rows_are_told_apart_and_every_tensor_is_held_whole() -> None:
    module = Fused()
    probed, layout = probe_and_load(FUSED, module, module.load_weights)
    assert layout.is_whole
    assert len(FUSED.tensors) == len(probed.blocks)
    assert {} == probed.troubles


@pytest.mark.parametrize("ranks", [2, 4])
def test_slices_of_ranks_are_the_whole_together_and_few_heads_are_held_by_several(ranks: int) -> None:
    held: dict[str, list[tuple[int, int, int]]] = {}
    for rank in range(ranks):
        module = Fused(rank, ranks)
        _, layout = probe_and_load(FUSED, module, module.load_weights)
        for band in layout.all_bands:
            held.setdefault(FUSED.tensors[band.tensor].name, []).append((band.axis, band.low, band.high))
    assert [(1, rank * 160 // ranks, (rank + 1) * 160 // ranks) for rank in range(ranks)] == held["down"]
    assert [(0, rank * 64 // ranks, (rank + 1) * 64 // ranks) for rank in range(ranks)] == held["q"]
    assert [(0, rank * 2 // ranks * 8, rank * 2 // ranks * 8 + 8) for rank in range(ranks)] == held["k"]
    assert [(0, 0, 96)] * ranks == held["norm"]


class Padded(torch.nn.Module):
    """An embedding padded to a round number of rows, tied to a head, a scalar, and a buffer that no loader knows."""

    def __init__(self, fill: bool) -> None:
        super().__init__()
        self.embed = empty(1280, 80)
        self.head = self.embed
        self.scalar = torch.nn.Parameter(torch.tensor(2.0), requires_grad=False)
        self.register_buffer("angles", torch.arange(50.0))
        self.fill = fill

    def load_weights(self, weights: Weights) -> None:
        for name, loaded in weights:
            if name == "embed":
                self.embed.data[: loaded.shape[0]].copy_(loaded)
                if self.fill:
                    self.embed.data[loaded.shape[0] :].fill_(0)
            else:
                self.scalar.data.copy_(loaded)


@pytest.mark.parametrize("fill", [True, False])
def test_what_a_loader_leaves_alone_is_as_it_was(fill: bool) -> None:
    table = table_of({"embed": ("BF16", [1237, 80]), "scalar": ("F32", [])})
    module = Padded(fill)
    _, layout = probe_and_load(table, module, module.load_weights)
    assert layout.is_whole
    assert bool((module.embed.data[1237:] == (0 if fill else 7)).all())
    assert torch.equal(torch.arange(50.0), module.get_buffer("angles"))


class Experts(torch.nn.Module):
    """Stacked experts of two matrices in one, scales beside them, and only some experts here."""

    def __init__(self, experts: range, room: int, inner: int = 24, hidden: int = 40) -> None:
        super().__init__()
        self.experts, self.inner, self.room = experts, inner, room
        self.w13 = empty(len(experts), 2 * room, hidden, dtype=torch.float8_e4m3fn)
        self.w2 = empty(len(experts), hidden, inner, dtype=torch.float8_e4m3fn)
        self.scale = empty(len(experts), 2, dtype=torch.float32)

    def load_weights(self, weights: Weights) -> None:
        for name, loaded in weights:
            expert, kind = int(name.split(".")[0]), name.split(".")[1]
            if expert not in self.experts:
                continue
            here = self.experts.index(expert)
            if kind == "w2":
                self.w2.data[here].copy_(loaded)
            elif kind.startswith("scale"):
                self.scale.data[here, int(kind[-1])] = loaded
            else:
                at = 0 if kind == "w1" else self.room
                self.w13.data[here, at : at + self.inner].copy_(loaded)


@pytest.mark.parametrize("room", [24, 32])
def test_stacked_experts_of_many_tensors_in_bytes_are_found_where_they_are_held(room: int) -> None:
    shapes: dict[str, tuple[str, list[int]]] = {}
    for expert in range(70):  # 350 tensors: more than a byte tells in one pass
        shapes |= {f"{expert:02}.w{n}": ("F8_E4M3", [40, 24] if n == 2 else [24, 40]) for n in (1, 2, 3)}
        shapes |= {f"{expert:02}.scale{n}": ("F32", []) for n in (0, 1)}
    table = table_of(shapes)
    held: set[str] = set()
    for experts in (range(35), range(35, 70)):
        module = Experts(experts, room)
        _, layout = probe_and_load(table, module, module.load_weights)
        held |= {table.tensors[band.tensor].name for band in layout.all_bands}
    assert set(shapes) == held


class Turned(torch.nn.Module):
    """Transposed in memory, interleaved row by row, cut out of a larger one, and flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.turned = torch.nn.Parameter(empty(50, 30).data.t(), requires_grad=False)
        self.stored = empty(30, 50)
        self.woven = empty(64, 20)
        self.flat = empty(6 * 10 * 11)
        self.part = empty(33, 20)

    def load_weights(self, weights: Weights) -> None:
        for name, loaded in weights:
            if name == "turned":
                self.turned.data.copy_(loaded)
            elif name == "stored":
                self.stored.data.copy_(loaded.t())
            elif name == "even":
                self.woven.data[0::2].copy_(loaded)
            elif name == "odd":
                self.woven.data[1::2].copy_(loaded)
            elif name == "flat":
                self.flat.data.copy_(loaded.reshape(-1))
            else:
                self.part.data.copy_(loaded[17:50, 20:40])


def test_transposes_weaves_and_parts_are_layouts_too() -> None:
    table = table_of(
        {
            "turned": ("BF16", [30, 50]),
            "stored": ("BF16", [50, 30]),
            "even": ("BF16", [32, 20]),
            "odd": ("BF16", [32, 20]),
            "flat": ("BF16", [6, 10, 11]),
            "part": ("BF16", [70, 40]),
        }
    )
    module = Turned()
    probed = probe(table, module.named_parameters(), module.load_weights)
    held = checkpoint_of(table)
    module.load_weights(iter(held.items()))
    check_holds(table, probed, module, held)
    units = {spec.name: 0 for spec in table.tensors}
    for block in probed.blocks:
        units[table.tensors[block.tensor].name] += torch.Size(block.size).numel()
    assert {"turned": 1500, "stored": 1500, "even": 640, "odd": 640, "flat": 660, "part": 660} == units


def test_what_is_converted_computed_or_shuffled_is_named() -> None:
    table = table_of({"a": ("BF16", [40, 8]), "b": ("F32", [40]), "c": ("BF16", [3000, 16]), "d": ("BF16", [16])})
    held = {
        "widened": empty(40, 8, dtype=torch.float32),
        "rooted": empty(40, dtype=torch.float32),
        "shuffled": empty(3000, 16),
        "kept": empty(16),
    }
    order = torch.randperm(48000, generator=torch.Generator().manual_seed(1))

    def load(weights: Weights) -> None:
        for name, loaded in weights:
            if name == "a":
                held["widened"].copy_(loaded)
            elif name == "b":
                held["rooted"].copy_(-torch.exp(loaded))
            elif name == "c":
                held["shuffled"].copy_(loaded.reshape(-1)[order].reshape(3000, 16))
            else:
                held["kept"].copy_(loaded)

    probed = probe(table, held.items(), load)
    assert {"widened", "rooted", "shuffled"} == set(probed.troubles)
    assert [3] == [block.tensor for block in probed.blocks]


def test_a_loader_that_fails_is_a_refusal_with_its_words() -> None:
    def load(weights: Weights) -> None:
        raise ValueError(f"no module named {next(iter(weights))[0]}")

    with pytest.raises(LayoutRefused, match="no module named q"):
        probe(table_of({"q": ("BF16", [4])}), [("q", empty(4))], load)


def test_a_large_matrix_is_found_in_two_digits_and_one_block_each() -> None:
    table = table_of({"down": ("BF16", [300, 500]), "long": ("F8_E4M3", [70000]), "ids": ("I64", [90])})
    module = torch.nn.Module()
    module.down, module.long = empty(300, 250), empty(70000, dtype=torch.float8_e4m3fn)
    module.register_buffer("ids", torch.zeros(90, dtype=torch.int64))

    def load(weights: Weights) -> None:
        for name, loaded in weights:
            held = module.get_buffer("ids") if name == "ids" else module.get_parameter(name).data
            held.copy_(loaded[:, 250:] if name == "down" else loaded)

    probed, layout = probe_and_load(table, module, load)
    assert 3 == len(probed.blocks)
    assert [(1, 250, 500)] == [(band.axis, band.low, band.high) for band in layout.bands[0]]


def test_a_store_that_was_replaced_after_loading_is_gone_and_one_seen_through_another_view_is_not() -> None:
    module = Fused()
    probed = probe(FUSED, module.named_parameters(), module.load_weights)
    turned, replaced = module.o.data.t(), module.down.data.clone()
    module.o, module.down = torch.nn.Parameter(turned, False), torch.nn.Parameter(replaced, False)
    names = {s.name: a is not None for s, a in zip(probed.stores, attach(probed, module.parameters()), strict=True)}
    assert {"qkv": True, "o": True, "gate_up": True, "down": False, "norm": True} == names


class Copying(torch.nn.Module):
    """Two tensors as they are, and whatever else a loader makes of them."""

    def __init__(
        self, kind: torch.dtype, beside: torch.Tensor, also: Callable[[Copying, torch.Tensor], object]
    ) -> None:
        super().__init__()
        self.a = empty(16, 8, dtype=kind)
        self.b = empty(8)
        self.beside = torch.nn.Buffer(beside)
        self._also = also

    def load(self, weights: Weights) -> None:
        for name, tensor in weights:
            self.get_parameter(name).copy_(tensor)
            if name == "a":
                self._also(self, tensor)


@pytest.mark.parametrize(
    ("stored", "beside", "also"),
    [
        ("F32", torch.zeros(16, 8, dtype=torch.bfloat16), lambda m, a: m.beside.copy_(a)),
        ("F16", torch.zeros(16, 8, dtype=torch.float8_e5m2), lambda m, a: m.beside.copy_(a)),
        (
            "BF16",
            torch.zeros(16, 8, dtype=torch.bfloat16),
            lambda m, a: m.beside.copy_(a - a.float().mean().to(a.dtype)),
        ),
        ("BF16", torch.zeros(16), lambda m, a: m.beside.copy_(a.float().std(dim=1, unbiased=False))),
        ("BF16", torch.arange(8), lambda m, a: m.beside.copy_(torch.argsort(a[0], stable=True))),
        ("BF16", torch.zeros(1000), lambda m, a: m.beside[7:8].copy_(a.float().sum())),
        ("BF16", torch.zeros(16, 8, dtype=torch.bfloat16), lambda m, a: m.beside.copy_((-a).relu())),
    ],
    ids=["rounded", "rounded to a byte", "centred", "spread", "order", "one element", "one sign"],
)
def test_what_is_computed_beside_a_weight_is_named(
    stored: str, beside: torch.Tensor, also: Callable[[Copying, torch.Tensor], object]
) -> None:
    table = table_of({"a": (stored, [16, 8]), "b": ("BF16", [8])})
    module = Copying(DTYPES[stored], beside, also)

    probed = probe(table, [*module.named_parameters(), *module.named_buffers()], module.load)

    assert ["beside"] == sorted(probed.troubles)


@pytest.mark.parametrize("change", [torch.abs, torch.relu, lambda a: a.clamp(-0.5, 0.5)], ids=["abs", "relu", "clamp"])
def test_a_loader_that_leaves_only_some_values_alone_is_named(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    table = table_of({"a": ("BF16", [16, 8]), "b": ("BF16", [8])})
    module = Copying(torch.bfloat16, torch.zeros(1), lambda m, a: m.a.copy_(change(a)))

    probed = probe(table, [*module.named_parameters(), *module.named_buffers()], module.load)

    assert ["a"] == sorted(probed.troubles)
