"""What stands beside the codecs in `syncline bench codec`: views as engines quantize them, the field's formats, the bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from syncline.codecs.context.alphabets import ALPHABETS
from syncline.wire.tensors import TensorSpec
from syncline_cli.bench import bounds, peers
from syncline_cli.bench.quantized import Quantization, e2m1, e4m3, quantized_view
from syncline_cli.bench.scales import MOVES, moves_of_scales
from syncline_cli.bench.synthetic import AdamStep, learning_rate
from syncline_cli.bench.views import Flat, Tensor, View, bfloat16, flattened, float32

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def flat(dtype: str, old: NDArray[np.unsignedinteger], new: NDArray[np.unsignedinteger]) -> Flat:
    return Flat(dtype, old, new, np.flatnonzero(old != new))


def hard_values() -> NDArray[np.float32]:
    """Normal values, every boundary between two E4M3 values, and both of its neighbours."""
    codes = np.arange(127, dtype=np.uint8)
    values = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    ties = (values[1:] + values[:-1]) / 2
    around = np.concatenate([np.nextafter(ties, 0), ties, np.nextafter(ties, np.float32(1e9)), values])
    drawn = np.random.default_rng(0).standard_normal(4000).astype(np.float32) * 30
    return np.concatenate([around, -around, drawn]).astype(np.float32)


def test_bf16_and_e4m3_codes_are_those_of_torch() -> None:
    values = hard_values()
    tensor = torch.from_numpy(values)
    assert np.array_equal(tensor.bfloat16().view(torch.int16).numpy().view(np.uint16), bfloat16(values))
    assert np.array_equal(tensor.to(torch.float8_e4m3fn).view(torch.uint8).numpy(), e4m3(values))
    assert np.array_equal(tensor.bfloat16().float().numpy(), float32(bfloat16(values)))


def test_e2m1_takes_the_nearest_value_and_of_two_the_even_code() -> None:
    assert [0, 0, 1, 2, 2, 2, 3, 4, 4, 4, 5, 6, 6, 6, 7, 7] == e2m1(
        np.array([0, 0.25, 0.26, 0.75, 1, 1.25, 1.3, 1.75, 2, 2.5, 2.6, 3.5, 4, 5, 5.1, 100], np.float32)
    ).tolist()
    assert [8, 15] == e2m1(np.array([-0.1, -6], np.float32)).tolist()


@pytest.mark.parametrize("how", list(Quantization))
def test_a_quantized_view_stands_for_its_weights(how: Quantization) -> None:
    weights = np.random.default_rng(0).standard_normal((96, 192), np.float32) * np.float32(0.02)
    view = quantized_view({"a_proj.weight": weights, "norm.weight": weights[0]}, how)
    tensors = {s.name: (s, units) for s, units in zip(view.table.tensors, view.units, strict=True)}
    assert np.array_equal(bfloat16(weights[0]), tensors["norm.weight"][1])
    worst = np.abs(served(tensors) - weights) / block_greatest(weights, how)
    # half a step next to the greatest code: 16 of 448, or 1 of 6; MXFP4 lets up to a quarter of its greatest go
    most = {"nvfp4": 1 / 6 * 1.07, "mxfp4": 0.25}.get(how, 16 / 448 * (1.07 if how == "fp8" else 2))
    assert 0 < worst.max() <= most


def served(tensors: Mapping[str, tuple[TensorSpec, NDArray[Any]]]) -> NDArray[np.float32]:
    """What an engine computes from codes and scales."""
    codes = tensors["a_proj.weight"][1]
    scales = {name.rpartition("weight")[2]: units for name, (_, units) in tensors.items() if name.startswith("a_proj.")}
    if "_scale_inv" in scales:
        values = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy().reshape(96, 192)
        return values * scales["_scale_inv"].view(np.float32).reshape(1, 2).repeat(128, 1)[:, :192]
    nibbles = np.stack([codes & 15, codes >> 4], 1).reshape(96, 192)
    values = np.array(E2M1 + [-v for v in E2M1], np.float32)[nibbles]
    if "_scale_2" in scales:
        steps = torch.from_numpy(scales["_scale"]).view(torch.float8_e4m3fn).float().numpy()
        return values * (steps * scales["_scale_2"].view(np.float32)).reshape(96, -1).repeat(16, 1)
    return values * np.exp2(scales["_scale"].astype(np.float32) - 127).reshape(96, -1).repeat(32, 1)


def block_greatest(weights: NDArray[np.float32], how: Quantization) -> NDArray[np.float32]:
    if block := {"mxfp4": 32, "nvfp4": 16}.get(how):
        return np.abs(weights).reshape(96, -1, block).max(2).repeat(block, 1)
    left, right = np.abs(weights[:, :128]).max(), np.abs(weights[:, 128:]).max()
    return np.repeat(np.array([left, right], np.float32), (128, 64))


def test_a_synthetic_step_changes_the_share_that_was_asked_for() -> None:
    step = AdamStep.seeded(1 << 20)
    for share in (0.001, 0.05):
        (found,) = flattened(*step.views(learning_rate(share)))
        assert share == pytest.approx(found.positions.size / step.elements, rel=0.1)


def test_gaps_of_sixteen_bits_name_every_position() -> None:
    positions = np.array([0, 1, 5, 65_540, 65_541 + 65_535, 300_000, 300_000 + 65_536])
    at, found = -1, []
    for gap in peers.gaps16(positions).tolist():
        at += gap + (gap != 0xFFFF)
        found += [at] if gap != 0xFFFF else []
    assert positions.tolist() == found


def test_a_format_of_the_field_is_counted_whole() -> None:
    random = np.random.default_rng(0)
    old = random.integers(0, 1 << 16, 1 << 16, np.uint16)
    new = old.copy()
    new[::64] = random.integers(0, 1 << 16, 1 << 10, np.uint16)
    step = flat("BF16", old, new)
    changed = step.positions.size
    assert 6 * changed == peers.index_and_value(step)
    assert peers.gaps_and_values(step) >= 2 * changed  # random values do not shrink
    assert peers.gaps_and_flips(step) >= 2 * changed
    assert 2 * changed <= peers.mask_zstd(step) < peers.mask_lz4(step) < old.nbytes


def test_bounds_of_a_step_that_can_be_reckoned_by_hand() -> None:
    # Exponents 1 and 2, 512 units each; of the first a half moves by one, of the second none.
    old = np.repeat(np.array([1 << 7, 2 << 7], np.uint16), 512)
    new = old.copy()
    new[:512:2] += 1
    step = flat("BF16", old, new)
    assert 512 * 1.0 == pytest.approx(bounds.context_and_step([step]))
    assert 1024 * entropy(0.25) == pytest.approx(bounds.position_and_flip([step]))
    assert 2 * 512 * 1.0 == pytest.approx(bounds.context_and_step([step, step]))


def test_nibbles_by_themselves_cost_what_can_be_reckoned_by_hand() -> None:
    # Of 512 bytes 0x12 the low nibble moves in a quarter, from 2 to 3; no high one does.
    old = np.full(512, 0x12, np.uint8)
    new = old.copy()
    new[::4] = 0x13
    step = flat("F4", old, new)
    assert 512 * entropy(0.25) == pytest.approx(bounds.nibble_and_step([step]))
    assert bounds.context_and_step([step]) == pytest.approx(bounds.nibble_and_step([step]))
    # Where a nibble's chance hangs on its neighbour, a byte knows more than two nibbles do.
    mixed = np.concatenate([old, np.full(512, 0x22, np.uint8)])
    moved = flat("F4", mixed, np.concatenate([new, mixed[512:]]))
    assert 512 * entropy(0.25) == pytest.approx(bounds.context_and_step([moved]))
    assert 1536 * entropy(128 / 1536) == pytest.approx(bounds.nibble_and_step([moved]))
    wide = flat("BF16", old.astype(np.uint16), new.astype(np.uint16))
    assert bounds.context_and_step([wide]) == bounds.nibble_and_step([wide])


def test_codes_beside_their_scale_s_move_cost_what_can_be_reckoned_by_hand() -> None:
    # Of two blocks one gets another scale, and a half of its codes move by one; of the other none does.
    codes = np.full((256, 128), 0x38, np.uint8)
    scales = np.ones((2, 1), np.float32).view(np.uint32)
    moved, other = codes.copy(), scales.copy()
    moved[:128, ::2] += 1
    other[0] += 5
    old, new = (
        View.of({"w": Tensor("F8_E4M3", c.shape, c), "w_scale_inv": Tensor("F32", s.shape, s)})
        for c, s in ((codes, scales), (moved, other))
    )
    moves = moves_of_scales(old, new)
    assert [0] == list(moves)
    assert np.array_equal(np.repeat([MOVES // 2 + 3, MOVES // 2], 128 * 128), moves[0])
    scale_bits = 2 * entropy(0.5)
    assert 128 * 128 + scale_bits == pytest.approx(bounds.scale_and_step(old, new, moves=moves, kinds=MOVES))
    plain = bounds.context_and_step(flattened(old, new))
    assert 2 * 128 * 128 * entropy(0.25) + scale_bits == pytest.approx(plain)
    assert plain == pytest.approx(bounds.scale_and_step(old, new, moves={}, kinds=MOVES))


@pytest.mark.parametrize(("how", "units"), [("nvfp4", 8), ("mxfp4", 16)])
def test_a_scale_s_move_reaches_the_bytes_of_its_codes(how: str, units: int) -> None:
    weights = np.random.default_rng(0).standard_normal((4, 64), np.float32)
    old = quantized_view({"a_proj.weight": weights}, Quantization(how))
    name = {spec.name: at for at, spec in enumerate(old.table.tensors)}
    new = View(old.table, [flat.copy() for flat in old.units])
    new.units[name["a_proj.weight_scale"]][1] -= 1
    (moves,) = moves_of_scales(old, new).values()
    assert list(range(units, 2 * units)) == np.flatnonzero(moves != MOVES // 2).tolist()
    assert {MOVES // 2 - 1} == set(moves[units : 2 * units].tolist())


def entropy(share: float) -> float:
    return float(-share * np.log2(share) - (1 - share) * np.log2(1 - share))


def test_history_tells_units_apart_that_a_context_does_not() -> None:
    first = np.full(1024, 1 << 7, np.uint16)
    second, third = first.copy(), first.copy()
    second[:256] += 1
    history = bounds.History(1024)
    assert 1024 * entropy(0.25) == pytest.approx(history.bits(flat("BF16", first, second)))
    third[:256] += 2  # the same units again: known from their age
    assert 0 == pytest.approx(history.bits(flat("BF16", second, third)), abs=1e-6)


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "F8_E8M0", "F4"])
def test_a_bound_counts_the_steps_that_the_codec_counts(dtype: str) -> None:
    alphabet = ALPHABETS[dtype]
    random = np.random.default_rng(0)
    before = random.integers(0, 1 << alphabet.bits, 4096).astype(alphabet.unit)
    after = random.integers(0, 1 << alphabet.bits, 4096).astype(alphabet.unit)
    moves = bounds.steps_of(alphabet, before, after)
    assert np.array_equal(before == after, moves == 0)
    assert np.array_equal(moves, -bounds.steps_of(alphabet, after, before))
    if dtype == "F8_E4M3":
        zeros = np.array([0x80], np.uint8), np.array([0x00], np.uint8)
        assert [1] == bounds.steps_of(alphabet, *zeros).tolist()  # -0 and +0 are neighbours


def test_formats_see_one_dtype_at_a_time() -> None:
    old = View.of(
        {
            "b": Tensor("BF16", (2,), np.zeros(2, np.uint16)),
            "a": Tensor("BF16", (3,), np.zeros(3, np.uint16)),
            "s": Tensor("F8_E8M0", (2,), np.zeros(2, np.uint8)),
        }
    )
    new = View(old.table, [old.units[0], np.array([0, 7], np.uint16), old.units[2]])
    assert [("BF16", 5, [4]), ("F8_E8M0", 2, [])] == [
        (step.dtype, step.old.size, step.positions.tolist()) for step in flattened(old, new)
    ]
