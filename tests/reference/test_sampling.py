"""Sampling: reproducible a request, cut as asked, with the log-probability that a recomputation gives."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.errors import Rejected
from syncline_agent.reference.model import Decoder, ModelConfig, sequence_logits, token_logprobs
from syncline_agent.reference.sampling import SamplingParams, sample, uniform

LOGITS = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))


def frequencies(params: SamplingParams, draws: int = 4000) -> list[float]:
    got = sample(LOGITS.repeat(draws, 1), [params] * draws, range(draws))
    counts = torch.bincount(torch.tensor([s.token for s in got]), minlength=4)
    return (counts / draws).tolist()


def test_tokens_come_as_often_as_their_probability_says() -> None:
    assert [0.5, 0.3, 0.15, 0.05] == pytest.approx(frequencies(SamplingParams(seed=5)), abs=0.03)


def test_temperature_sharpens() -> None:
    squares = [0.25, 0.09, 0.0225, 0.0025]
    assert [s / sum(squares) for s in squares] == pytest.approx(
        frequencies(SamplingParams(temperature=0.5, seed=6)), abs=0.03
    )


def test_top_k_keeps_the_k_likeliest_in_proportion() -> None:
    assert [0.625, 0.375, 0.0, 0.0] == pytest.approx(frequencies(SamplingParams(top_k=2, seed=7)), abs=0.03)


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    assert [10 / 19, 6 / 19, 3 / 19, 0.0] == pytest.approx(frequencies(SamplingParams(top_p=0.85, seed=8)), abs=0.03)


def test_greedy_takes_the_likeliest_and_reports_its_untempered_logprob() -> None:
    (got,) = sample(LOGITS, [SamplingParams(temperature=0.0, seed=9)], [0])
    assert 0 == got.token
    assert math.log(0.5) == pytest.approx(got.logprob, abs=1e-6)


def test_a_row_draws_the_same_alone_and_in_any_batch() -> None:
    params = [
        SamplingParams(seed=s, temperature=t, top_k=k)
        for s, t, k in ((1, 1.0, 0), (2, 0.7, 3), (3, 0.0, 0), (1, 1.0, 0))
    ]
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    together = sample(logits, params, [0, 5, 2, 9])
    for row, draw in enumerate([0, 5, 2, 9]):
        (alone,) = sample(logits[row : row + 1], [params[row]], [draw])
        assert alone.token == together[row].token
        assert alone.logprob == pytest.approx(together[row].logprob, abs=1e-6)


@given(seed=st.integers(0, 2**64 - 1), draw=st.integers(0, 2**32))
@settings(max_examples=200)
def test_a_draw_lies_between_zero_and_one(seed: int, draw: int) -> None:
    assert 0.0 <= uniform(seed, draw) < 1.0


@pytest.mark.parametrize(
    "bad", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}, {"temperature": math.nan}]
)
def test_parameters_out_of_range_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(Rejected, match="sampling needs"):
        SamplingParams(**bad)  # type: ignore[arg-type]


def test_a_generated_sequence_recomputes_to_the_logprobs_it_was_sampled_with() -> None:
    config = ModelConfig(
        vocab=40, hidden=64, intermediate=96, layers=3, heads=4, kv_heads=2, head_dim=16, max_positions=64
    )
    generator = torch.Generator().manual_seed(11)
    weights = {n: (torch.randn(s, generator=generator) * 0.3).bfloat16() for n, s in config.tensors().items()}
    decoder = Decoder(config, weights, slots=1)
    params, tokens, logprobs = SamplingParams(temperature=0.8, seed=12), [1, 5, 6], []
    logits = decoder.forward(tokens, [0] * 3, range(3))[-1:]
    for draw in range(30):
        (got,) = sample(logits, [params], [draw])
        tokens.append(got.token)
        logprobs.append(got.logprob)
        logits = decoder.forward([got.token], [0], [len(tokens) - 1])
    whole = torch.tensor([tokens])
    again = token_logprobs(sequence_logits(config, weights, whole)[:, :-1], whole[:, 1:], temperature=0.8)[0, 2:]
    assert again.tolist() == pytest.approx(logprobs, abs=1e-3)
    assert decoder.logprobs(whole, temperature=0.8)[0, 2:].tolist() == pytest.approx(again.tolist(), abs=1e-6)
