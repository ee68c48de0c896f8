"""The demo's trainer: what a step does to the policy and to the bits, how rollouts are checked, what an export holds."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from syncline.errors import AlreadyExists, Rejected
from syncline_agent.reference.generation import complete
from syncline_agent.reference.model import Decoder, ModelConfig, load_weights, sequence_logits, token_logprobs
from syncline_agent.reference.sampling import SamplingParams, sample
from syncline_agent.reference.tokenizer import CharacterTokenizer
from syncline_cli.demo.checkpoint import TRAINER_STATE
from syncline_cli.demo.rollout import Rollout, Span, pad, recheck
from syncline_cli.demo.task import LONGEST_ANSWER, TOKENIZER, Problem, draw_demonstration, draw_problem, reward
from syncline_cli.demo.trainer import Trainer, TrainerSettings, advantages
from syncline_cli.demo.warm_start import FOLDER, MODEL, first_weights, imitate

TINY = ModelConfig(
    vocab=TOKENIZER.vocab, hidden=32, intermediate=48, layers=2, heads=4, kv_heads=2, head_dim=8, max_positions=32
)
FAST = TrainerSettings(learning_rate=1e-3, epsilon=0.05)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that spin for each other make these small products a hundred times slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tiny_trainer(settings: TrainerSettings = FAST, seed: int = 1) -> Trainer:
    weights = first_weights(TINY, torch.Generator().manual_seed(seed))
    return Trainer(TINY, weights, tokenizer=TOKENIZER, settings=settings)


def answered(trainer: Trainer, rng: random.Random, *, problems: int, answers: int, version: int = 0) -> list[Rollout]:
    """Rollouts of the trainer's own newest policy, without an engine between."""
    drawn = [draw_problem(rng) for _ in range(problems)]
    prompts = [TOKENIZER.encode(p.prompt) for p in drawn for _ in range(answers)]
    params = [SamplingParams(seed=rng.getrandbits(63)) for _ in prompts]
    decoder = Decoder(trainer.config, trainer.weights, slots=64)
    completions = complete(decoder, prompts, params, end=TOKENIZER.end, limit=LONGEST_ANSWER)
    return [
        Rollout(
            group=row // answers,
            prompt=tuple(prompts[row]),
            tokens=got.tokens,
            logprobs=got.logprobs,
            spans=(Span(0, len(got.tokens), version),),
            reward=reward(drawn[row // answers], TOKENIZER.decode(got.tokens)),
        )
        for row, got in enumerate(completions)
    ]


def two_answers(trainer: Trainer, shift: float = 0.0) -> list[Rollout]:
    """A rewarded and an unrewarded answer to one prompt; `shift` makes the engine's report differ from the policy."""
    prompt, made = (1, 4, 13, 5, 14), []
    for tokens, value in (((6, 7, 2), 1.0), ((15, 2), 0.0)):
        whole = torch.tensor([[*prompt, *tokens]])
        now = Decoder(trainer.config, trainer.weights, slots=1).logprobs(whole)[0, len(prompt) - 1 :]
        reported = now - shift if value else now + shift
        made.append(Rollout(0, prompt, tokens, tuple(reported.tolist()), (Span(0, len(tokens), 0),), value))
    return made


def likelihood(trainer: Trainer, rollout: Rollout) -> float:
    batch = pad([rollout])
    now = token_logprobs(sequence_logits(trainer.config, trainer.weights, batch.tokens)[:, :-1], batch.tokens[:, 1:])
    return float((now * batch.drawn).sum())


def test_a_step_makes_the_rewarded_answer_likelier_and_the_other_less() -> None:
    trainer = tiny_trainer()
    good, bad = two_answers(trainer)
    before = likelihood(trainer, good), likelihood(trainer, bad)
    metrics = trainer.step([good, bad])
    assert likelihood(trainer, good) > before[0]
    assert likelihood(trainer, bad) < before[1]
    assert (1, 0.5, 1.0, 0.0) == (metrics.step, metrics.reward, metrics.useful, metrics.clipped)


def test_a_kept_view_stays_as_it_was_and_the_changed_bits_are_counted() -> None:
    trainer = tiny_trainer()
    kept = trainer.weights
    copies = {name: tensor.clone() for name, tensor in kept.items()}
    metrics = trainer.step(two_answers(trainer))
    assert all(torch.equal(copies[n].view(torch.int16), kept[n].view(torch.int16)) for n in kept)
    new = trainer.weights
    expected = sum(int((kept[n].view(torch.int16) != new[n].view(torch.int16)).sum()) for n in kept)
    assert expected == metrics.changed > 0
    assert expected / sum(t.numel() for t in kept.values()) == metrics.changed_share


def test_a_small_rate_changes_few_bits_yet_the_masters_keep_the_rest() -> None:
    trainer = tiny_trainer(TrainerSettings(learning_rate=1e-6, epsilon=1e-10))
    first = trainer.weights
    rollouts = two_answers(trainer)
    shares = [trainer.step(rollouts).changed_share for _ in range(40)]
    assert max(shares) < 0.05
    total = sum(int((first[n].view(torch.int16) != t.view(torch.int16)).sum()) for n, t in trainer.weights.items())
    assert total / sum(t.numel() for t in first.values()) > 5 * max(shares[1:])


def test_answers_too_far_from_the_policy_that_drew_them_teach_nothing() -> None:
    trainer = tiny_trainer()
    metrics = trainer.step(two_answers(trainer, shift=1.0))
    assert (1.0, 0, 0.0) == (metrics.clipped, metrics.changed, metrics.gradient_norm)


def test_equal_rewards_teach_nothing_and_still_count_as_a_step() -> None:
    trainer = tiny_trainer()
    good, _ = two_answers(trainer)
    metrics = trainer.step([good, good])
    assert (1, 1.0, 0, 0.0) == (metrics.step, metrics.reward, metrics.changed, metrics.useful)


def test_advantages_are_rewards_in_the_standard_deviations_of_their_group() -> None:
    good, bad = two_answers(tiny_trainer())
    assert [3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)] == pytest.approx(
        [a for _, a in advantages([good, bad, bad, bad])]
    )


def test_an_answer_without_another_to_compare_with_is_refused() -> None:
    with pytest.raises(Rejected, match="one rollout"):
        tiny_trainer().step(two_answers(tiny_trainer())[:1])


@pytest.mark.parametrize(
    "spans", [(), (Span(0, 2, 1),), (Span(0, 2, 1), Span(1, 3, 2)), (Span(0, 3, 1), Span(3, 3, 2))]
)
def test_a_rollout_whose_spans_do_not_cover_its_tokens_once_is_refused(spans: tuple[Span, ...]) -> None:
    with pytest.raises(Rejected, match="spans"):
        Rollout(0, (1,), (3, 4, 2), (-1.0, -1.0, -1.0), spans, 0.0)


def switching_rollouts(versions: Mapping[int, Mapping[str, torch.Tensor]]) -> list[Rollout]:
    """Two sequences in one engine whose weights are patched in place after the first has three tokens and the second one."""
    live = {name: tensor.clone() for name, tensor in versions[7].items()}
    decoder = Decoder(TINY, live, slots=2)
    prompts = [[1, 4, 13, 5], [1, 9, 9, 13, 8]]
    tokens: list[list[int]] = [[], []]
    logprobs: list[list[float]] = [[], []]

    def draw(logits: torch.Tensor, slots: list[int]) -> None:
        got = sample(logits, [SamplingParams(seed=s, temperature=0.9) for s in slots], [len(tokens[s]) for s in slots])
        for slot, one in zip(slots, got, strict=True):
            tokens[slot].append(one.token)
            logprobs[slot].append(one.logprob)

    def step(slots: list[int]) -> None:
        at = [len(prompts[s]) + len(tokens[s]) - 1 for s in slots]
        draw(decoder.forward([tokens[s][-1] for s in slots], slots, at), slots)

    draw(decoder.forward(prompts[0], [0] * 4, range(4))[-1:], [0])
    step([0])
    draw(decoder.forward(prompts[1], [1] * 5, range(5))[-1:], [1])
    step([0])
    for name, tensor in live.items():
        tensor.copy_(versions[8][name])
    for _ in range(4):
        step([0, 1])
    return [
        Rollout(
            s, tuple(prompts[s]), tuple(tokens[s]), tuple(logprobs[s]), (Span(0, cut, 7), Span(cut, cut + 4, 8)), 0.0
        )
        for s, cut in ((0, 3), (1, 1))
    ]


def test_rollouts_over_a_switch_in_flight_recompute_exactly_by_replaying_the_cache() -> None:
    versions = {7: tiny_trainer(seed=1).weights, 8: tiny_trainer(seed=2).weights}
    rollouts = switching_rollouts(versions)
    assert recheck(TINY, versions, rollouts, temperature=0.9) < 1e-4
    late = [
        Rollout(
            r.group,
            r.prompt,
            r.tokens,
            r.logprobs,
            (Span(0, r.spans[0].stop + 1, 7), Span(r.spans[0].stop + 1, len(r.tokens), 8)),
            0.0,
        )
        for r in rollouts
    ]
    assert recheck(TINY, versions, late, temperature=0.9) > 0.05


def test_rollouts_of_one_version_recompute_exactly_and_at_another_version_do_not() -> None:
    trainer = tiny_trainer()
    rollouts = answered(trainer, random.Random(5), problems=6, answers=2, version=3)
    other = tiny_trainer(seed=2).weights
    assert recheck(TINY, {3: trainer.weights}, rollouts) < 1e-4
    assert recheck(TINY, {3: other}, rollouts) > 0.05


def test_a_rollout_of_a_version_that_is_not_kept_is_refused_not_skipped() -> None:
    trainer = tiny_trainer()
    rollouts = answered(trainer, random.Random(5), problems=1, answers=2, version=3)
    with pytest.raises(Rejected, match=r"\[3\]"):
        recheck(TINY, {4: trainer.weights}, rollouts)


def test_an_export_is_a_whole_checkpoint_with_the_views_bits(tmp_path: Path) -> None:
    trainer = tiny_trainer()
    trainer.step(two_answers(trainer))
    (tmp_path / ".step-1.unfinished").mkdir()
    (tmp_path / ".step-1.unfinished" / "left").write_text("by a killed export")
    trainer.export(tmp_path / "step-1")
    config, weights = load_weights(tmp_path / "step-1")
    assert TINY == config
    assert trainer.weights.keys() == weights.keys()
    assert all(torch.equal(t.view(torch.int16), weights[n].view(torch.int16)) for n, t in trainer.weights.items())
    assert TOKENIZER == CharacterTokenizer.load(tmp_path / "step-1")
    assert {"global_step": 1} == json.loads((tmp_path / "step-1" / TRAINER_STATE).read_text())
    assert ["step-1"] == [p.name for p in tmp_path.iterdir()]
    with pytest.raises(AlreadyExists, match="step-1"):
        trainer.export(tmp_path / "step-1")


@pytest.mark.parametrize(
    "text, value", [("42", 1.0), ("43", 0.0), ("4", 0.0), ("042", 0.0), ("?", 0.0), ("42?", 0.0), ("", 0.0)]
)
def test_only_the_exact_answer_is_rewarded(text: str, value: float) -> None:
    assert value == reward(Problem("40+2=", "42"), text)


def test_demonstrations_are_right_in_about_a_third_of_the_cases() -> None:
    rng = random.Random(1)
    right = 0.0
    for _ in range(3000):
        problem = draw_problem(rng)
        right += reward(problem, draw_demonstration(rng, problem)) / 3000
    assert 0.35 == pytest.approx(right, abs=0.04)


def test_imitation_lowers_its_loss() -> None:
    weights = first_weights(TINY, torch.Generator().manual_seed(1))
    losses = list(imitate(TINY, weights, random.Random(1), answer=lambda _, p: p.answer, steps=40, rate=5e-3, batch=32))
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


def test_the_shipped_warm_start_fits_its_script_and_is_small() -> None:
    config, weights = load_weights(FOLDER)
    assert MODEL == config
    assert TOKENIZER == CharacterTokenizer.load(FOLDER)
    assert sum(t.numel() * t.element_size() for t in weights.values()) < 3_000_000


def test_the_mean_reward_rises_from_the_shipped_warm_start() -> None:
    """At ten times the demo's rate, so that a few steps show it."""
    trainer = Trainer.load(FOLDER, settings=TrainerSettings(learning_rate=2e-3, epsilon=0.05))
    rng = random.Random(3)
    rewards = [trainer.step(answered(trainer, rng, problems=16, answers=8)).reward for _ in range(10)]
    assert 0.2 < sum(rewards[:2]) / 2 < 0.55
    assert sum(rewards[-2:]) / 2 > sum(rewards[:2]) / 2 + 0.15
