"""Which pieces of which tensors one rank of a reference engine holds, and in what parameters they lie together.

Pure: a function of config, tensor table, rank and number of ranks. Loading and the arm's layout both follow from it, so
what is loaded is what is changed in place. Attention and MLPs are cut by heads and rows; kv heads that are fewer than ranks
are held by several; a layer's experts are dealt out whole, in order; norms and routers are everywhere. Queries, keys and
values are one parameter, so are gate and up, and so is the same matrix of all experts of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from syncline.errors import LayoutRefused
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_agent.arm.layout import Block, row_major, shape_of
from syncline_agent.reference.config import EMBEDDING, FINAL_NORM, HEAD, ModelConfig

VOCAB_MULTIPLE = 8
"""The rows of embedding and head are filled up to this much a rank, so that each rank has the same number."""
_FLOATS = ("BF16", "F16", "F32")


class Format(Enum):
    """How the values of a matrix are stored."""

    PLAIN = "plain floats"
    FP8 = "FP8 with a scale a block"
    NVFP4 = "NVFP4"


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a tensor, and where it lies in a parameter. All numbers are units, as in arm.layout."""

    tensor: int
    start: tuple[int, ...]
    size: tuple[int, ...]
    at: tuple[int, ...]
    """Index of its first unit in the parameter."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One allocation, and what of the version lies in it; the rest is padding."""

    dtype: str
    """A safetensors name."""
    shape: tuple[int, ...]
    """In units."""
    pieces: Sequence[Piece]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights that are multiplied with at once: rows of several tensors below each other, of one expert or of many."""

    format: Format
    rows: tuple[int, ...]
    """Of each of the tensors."""
    columns: int
    block: tuple[int, int] = (1, 1)
    """Rows and columns that share a scale."""


@dataclass(frozen=True, slots=True)
class Slices:
    """All that one rank holds."""

    parameters: Mapping[str, Parameter]
    matrices: Mapping[str, Matrix]
    """By the beginning of their parameters' names."""
    heads: int
    kv_heads: int
    vocab: range
    """Rows of embedding and head, padding included."""
    first_expert: int
    experts: int

    def blocks(self) -> list[Block]:
        """The same as the arm's layout has it: a store a parameter, in order."""
        found: list[Block] = []
        for store, parameter in enumerate(self.parameters.values()):
            strides = row_major(parameter.shape)
            for piece in parameter.pieces:
                offset = sum(index * stride for index, stride in zip(piece.at, strides, strict=True))
                own = strides[-len(piece.size) :]
                found.append(Block(piece.tensor, piece.start, piece.size, store, offset, own))
        return found


def slices(config: ModelConfig, table: TensorTable, *, rank: int = 0, ranks: int = 1) -> Slices:
    """What rank `rank` of `ranks` holds. LayoutRefused, by name, for tensors that are not the config's and for a number of
    ranks that does not divide it."""
    return _Slicer(config, table, rank, ranks).slices()


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows and columns, low and high, of a tensor of `of` rows and columns; of no rows, it is only looked at."""

    base: str
    rows: tuple[int, int]
    columns: tuple[int, int]
    of: tuple[int, int]


class _Slicer:
    def __init__(self, config: ModelConfig, table: TensorTable, rank: int, ranks: int) -> None:
        self._config, self._table = config, table
        self._rank, self._ranks = rank, ranks
        self._used: set[int] = set()
        self._parameters: dict[str, Parameter] = {}
        self._matrices: dict[str, Matrix] = {}

    def slices(self) -> Slices:
        config = self._config
        heads = self._share(config.heads, "attention heads")
        if config.kv_heads % self._ranks and self._ranks % config.kv_heads:
            raise LayoutRefused(f"{self._ranks} ranks and {config.kv_heads} kv heads: neither divides the other")
        kv_heads = max(1, config.kv_heads // self._ranks)
        kv_rank = self._rank * config.kv_heads // self._ranks if self._ranks > config.kv_heads else self._rank
        experts = self._share(config.experts, "experts")
        each = -(-config.vocab // (VOCAB_MULTIPLE * self._ranks)) * VOCAB_MULTIPLE
        vocab = range(each * self._rank, each * (self._rank + 1))
        self._vocabulary(EMBEDDING, vocab)
        for layer in range(config.layers):
            self._attention(f"model.layers.{layer}.", heads, kv_heads, kv_rank)
            self._mlp(layer, range(experts * self._rank, experts * (self._rank + 1)))
        self._vector(FINAL_NORM, [(FINAL_NORM, 0, config.hidden, config.hidden)])
        tied = self._table.index.get(HEAD) == self._table.index[EMBEDDING]
        if not config.tied and not tied:
            self._vocabulary(HEAD, vocab)
        unknown = [spec.name for i, spec in enumerate(self._table.tensors) if i not in self._used]
        if unknown:
            raise LayoutRefused(f"unknown tensors {unknown[:4]} for the config; they must fit")
        return Slices(self._parameters, self._matrices, heads, kv_heads, vocab, experts * self._rank, experts)

    def _share(self, number: int, what: str) -> int:
        if number % self._ranks:
            raise LayoutRefused(
                f"{number} {what} are not a multiple of {self._ranks} ranks; take another number of ranks"
            )
        return number // self._ranks

    def _vocabulary(self, name: str, rows: range) -> None:
        config = self._config
        index, spec = self._expect(name, (config.vocab, config.hidden))
        _check_float(spec)
        held = max(0, min(rows.stop, config.vocab) - rows.start)
        piece = Piece(index, (rows.start, 0), (held, config.hidden), (0, 0))
        self._parameters[name] = Parameter(spec.dtype, (len(rows), config.hidden), [piece] if held else [])

    def _attention(self, prefix: str, heads: int, kv_heads: int, kv_rank: int) -> None:
        config, own = self._config, prefix + "self_attn."
        wide = (0, config.hidden)
        parts: list[_Part] = []
        biases: list[tuple[str, int, int, int]] = []
        for name, held, of, place in (
            ("q", heads, config.heads, self._rank),
            ("k", kv_heads, config.kv_heads, kv_rank),
            ("v", kv_heads, config.kv_heads, kv_rank),
        ):
            low, high = (at * held * config.head_dim for at in (place, place + 1))
            whole = of * config.head_dim
            parts.append(_Part(f"{own}{name}_proj", (low, high), wide, (whole, config.hidden)))
            biases.append((f"{own}{name}_proj.bias", low, high, whole))
        self._matrix(own + "qkv_proj", [parts])
        if config.qkv_bias:
            self._vector(own + "qkv_proj.bias", biases)
        if config.qk_norm:
            for name in (f"{own}q_norm.weight", f"{own}k_norm.weight"):
                self._vector(name, [(name, 0, config.head_dim, config.head_dim)])
        cut, whole = heads * config.head_dim, config.heads * config.head_dim
        columns = (self._rank * cut, (self._rank + 1) * cut)
        self._matrix(own + "o_proj", [[_Part(own + "o_proj", wide, columns, (config.hidden, whole))]])
        for name in (prefix + "input_layernorm.weight", prefix + "post_attention_layernorm.weight"):
            self._vector(name, [(name, 0, config.hidden, config.hidden)])

    def _mlp(self, layer: int, own: range) -> None:
        config, prefix = self._config, f"model.layers.{layer}.mlp."
        gates: list[list[_Part]] = []
        downs: list[list[_Part]] = []
        for number, (mlp, width) in enumerate(config.mlps(layer)):
            if config.has_experts(layer):
                held = (0, width) if number in own else (0, 0)
            else:
                cut = self._share(width, "rows of an MLP")
                held = (self._rank * cut, (self._rank + 1) * cut)
            every = (0, config.hidden)
            up = [_Part(f"{mlp}{name}_proj", held, every, (width, config.hidden)) for name in ("gate", "up")]
            down = _Part(mlp + "down_proj", every if held[1] else (0, 0), held, (config.hidden, width))
            gates.append(up)
            downs.append([down])
        if config.has_experts(layer):
            router = prefix + "gate.weight"
            index, spec = self._expect(router, (config.experts, config.hidden))
            _check_float(spec)
            whole = (config.experts, config.hidden)
            self._parameters[router] = Parameter(spec.dtype, whole, [Piece(index, (0, 0), whole, (0, 0))])
            prefix += "experts."
        self._matrix(prefix + "gate_up_proj", gates, stacked=config.has_experts(layer))
        self._matrix(prefix + "down_proj", downs, stacked=config.has_experts(layer))

    # --- parameters of pieces --------------------------------------------------------------------------------------

    def _expect(self, name: str, shape: tuple[int, ...]) -> tuple[int, TensorSpec]:
        index = self._table.index.get(name)
        if index is None:
            raise LayoutRefused(f"missing tensors: the config asks for {name} {list(shape)}")
        spec = self._table.tensors[index]
        if shape_of(spec) != shape:
            raise LayoutRefused(f"{name} is {spec.dtype} {spec.shape}, the config asks for {list(shape)}")
        self._used.add(index)
        return index, spec

    def _vector(self, name: str, parts: Sequence[tuple[str, int, int, int]]) -> None:
        """Elements low to high of tensors of one dimension, behind each other."""
        pieces: list[Piece] = []
        at, kinds = 0, set[str]()
        for tensor, low, high, of in parts:
            index, spec = self._expect(tensor, (of,))
            _check_float(spec)
            kinds.add(spec.dtype)
            pieces.append(Piece(index, (low,), (high - low,), (at,)))
            at += high - low
        self._parameters[name] = Parameter(_one(kinds, name), (at,), pieces)

    def _matrix(self, name: str, stack: Sequence[Sequence[_Part]], *, stacked: bool = False) -> None:
        """Parts below each other; `stacked`: those of each expert that is held, one behind the other."""
        kind = self._format(stack[0][0].base)
        block = self._config.weight_block if kind is Format.FP8 else (1, 16) if kind is Format.NVFP4 else (1, 1)
        suffixes = {
            Format.PLAIN: [("weight", (1, 1))],
            Format.FP8: [("weight", (1, 1)), ("weight_scale_inv", block)],
            Format.NVFP4: [("weight", (1, 2)), ("weight_scale", block)],
        }[kind]
        for suffix, unit in suffixes:
            self._fused(f"{name}.{suffix}", suffix, unit, stack, stacked=stacked)
        scalars = ["weight_scale_2"] if kind is Format.NVFP4 else []
        if f"{stack[0][0].base}.input_scale" in self._table.index:
            scalars.append("input_scale")  # of activations: held, so that the version is whole, and not computed with
        for suffix in scalars:
            self._scalars(f"{name}.{suffix}", suffix, stack, stacked=stacked)
        held = next((parts for parts in stack if parts[0].rows[1]), stack[0])
        rows = tuple(part.rows[1] - part.rows[0] for part in held)
        self._matrices[name] = Matrix(kind, rows, held[0].columns[1] - held[0].columns[0], block)

    def _format(self, base: str) -> Format:
        index = self._table.index.get(base + ".weight")
        kind = None if index is None else self._table.tensors[index].dtype
        if kind in _FLOATS or kind is None:  # one that is missing is named where it is looked for
            return Format.PLAIN
        if kind == "F8_E4M3" and base + ".weight_scale_inv" in self._table.index:
            return Format.FP8
        if kind in ("U8", "F4") and base + ".weight_scale_2" in self._table.index:
            return Format.NVFP4
        raise LayoutRefused(
            f"{base}.weight is {kind} without the scales of {Format.FP8.value} (weight_scale_inv) or {Format.NVFP4.value}"
            " (weight_scale, weight_scale_2); the reference engine cannot serve it"
        )

    def _fused(
        self, name: str, suffix: str, unit: tuple[int, int], stack: Sequence[Sequence[_Part]], *, stacked: bool
    ) -> None:
        pieces: list[Piece] = []
        kinds: set[str] = set()
        shape, place = (0, 0), 0
        for parts in stack:
            down = 0
            for part in parts:
                tensor = f"{part.base}.{suffix}"
                whole = tuple(-(-of // per) for of, per in zip(part.of, unit, strict=True))
                index, spec = self._expect(tensor, whole)
                kinds.add(spec.dtype)
                for what, (low, high), per, of in zip(
                    ("rows", "columns"), (part.rows, part.columns), unit, part.of, strict=True
                ):
                    if low % per or (high % per and high != of):
                        raise LayoutRefused(
                            f"{tensor}: {self._ranks} ranks would cut {what} {low} to {high}, which are no whole blocks of"
                            f" {per}; take fewer ranks"
                        )
                start = tuple(low // per for (low, _), per in zip((part.rows, part.columns), unit, strict=True))
                stop = tuple(-(-high // per) for (_, high), per in zip((part.rows, part.columns), unit, strict=True))
                size = (stop[0] - start[0], stop[1] - start[1])
                if min(size) == 0:
                    continue
                at = (place, down, 0) if stacked else (down, 0)
                pieces.append(Piece(index, start, size, at))
                down += size[0]
                shape = (down, size[1])
            place += 1 if down else 0
        if suffix != "weight":
            _check_scales(name, kinds, suffix)
        self._parameters[name] = Parameter(_one(kinds, name), (place, *shape) if stacked else shape, pieces)

    def _scalars(self, name: str, suffix: str, stack: Sequence[Sequence[_Part]], *, stacked: bool) -> None:
        pieces: list[Piece] = []
        place = 0
        for parts in stack:
            for number, part in enumerate(parts):
                index, spec = self._expect(f"{part.base}.{suffix}", (1,))
                _check_float(spec, ("F32",))
                if part.rows[1] and part.columns[1]:
                    pieces.append(Piece(index, (0,), (1,), (place, number) if stacked else (number,)))
            place += 1 if parts[0].rows[1] else 0
        width = len(stack[0])
        self._parameters[name] = Parameter("F32", (place, width) if stacked else (width,), pieces)


def _check_float(spec: TensorSpec, kinds: tuple[str, ...] = _FLOATS) -> None:
    if spec.dtype not in kinds:
        raise LayoutRefused(f"{spec.name} is {spec.dtype} {spec.shape}, a float of {', '.join(kinds)} was expected")


def _check_scales(name: str, kinds: set[str], suffix: str) -> None:
    allowed = {"F8_E4M3"} if suffix == "weight_scale" else {"F32", "BF16"}
    if kinds - allowed:
        raise LayoutRefused(f"{name} is {', '.join(sorted(kinds))}, {' or '.join(sorted(allowed))} was expected")


def _one(kinds: set[str], name: str) -> str:
    if len(kinds) != 1:
        raise LayoutRefused(f"{name} is made of tensors of different dtypes {sorted(kinds)}; it is one in memory")
    return next(iter(kinds))
