"""Bodies of completion requests: what is understood, and what is refused by its field in OpenAI's shape."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline_agent.reference.requests import NEUTRAL, BadRequest, Limits, parse
from syncline_agent.reference.tokenizer import CharacterTokenizer

TOKENIZER = CharacterTokenizer("0123456789+=")
LIMITS = Limits("tiny", TOKENIZER.vocab, 64, TOKENIZER)


def parsed(**body: Any) -> Any:
    return parse({"prompt": "1+2=", **body}, LIMITS, random.Random(3))


def test_defaults_are_openai_s() -> None:
    request = parsed()
    assert [TOKENIZER.encode("1+2=")] == request.prompts
    assert (1, 16, 1.0, 1.0, 0, None, False) == (
        request.n,
        request.max_tokens,
        request.temperature,
        request.top_p,
        request.top_k,
        request.logprobs,
        request.stream,
    )
    assert parsed() == parsed()
    assert parsed(seed=5).params(2).seed == 7


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("1", [[1, 4]]),
        (["1", "2"], [[1, 4], [1, 5]]),
        ([1, 4, 5], [[1, 4, 5]]),
        ([[1, 4], [5]], [[1, 4], [5]]),
        (["1", [5]], [[1, 4], [5]]),
    ],
)
def test_a_prompt_is_text_or_tokens_or_a_list_of_either(prompt: object, expected: list[list[int]]) -> None:
    assert expected == parsed(prompt=prompt).prompts


def test_null_is_the_default_and_neutral_values_ask_for_nothing() -> None:
    assert parsed(seed=1) == parsed(
        seed=1, max_tokens=None, temperature=None, stop=None, stream=None, stream_options=None, top_k=-1, user="me"
    )
    for name, values in NEUTRAL.items():
        for value in values:
            assert parsed(seed=1) == parsed(seed=1, **{name: value})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": "x"}, "prompt"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": [1, TOKENIZER.vocab]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": ["1", 2]}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"n": 0}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": True}, "n"),
        ({"prompt": ["1"] * 600, "n": 2}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "16"}, "max_tokens"),
        ({"max_tokens": 60}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 1 << 63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": 3}, "stop"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"chunks": 1}}, "stream_options"),
        ({"stream_options": []}, "stream_options"),
        ({"request_id": ""}, "request_id"),
        ({"request_id": "\ud800"}, "request_id"),
        ({"request_id": "a\nb"}, "request_id"),
        ({"model": "another"}, "model"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"guided_json": {}}, "guided_json"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parsed(**body)
    assert param == refused.value.param


def test_text_needs_a_tokenizer() -> None:
    bare = Limits("tiny", 15, 64, None)
    bare_request = parse({"prompt": [3, 4]}, bare, random.Random(1))
    assert ([[3, 4]], True) == (bare_request.prompts, bare_request.return_token_ids)
    for body in ({"prompt": "1"}, {"prompt": [3], "stop": "1"}):
        with pytest.raises(BadRequest, match=r"tokenizer\.json is not read by the reference engine"):
            parse(body, bare, random.Random(1))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["prompt", "n", "max_tokens", "top_p", "stop", "logprobs", "seed"]), anything))
def test_a_body_is_understood_or_refused_and_nothing_else(body: dict[str, Any]) -> None:
    try:
        request = parse(body, LIMITS, random.Random(1))
    except BadRequest as refused:
        assert json.dumps(str(refused))
    else:
        assert all(len(prompt) + request.max_tokens <= LIMITS.max_len for prompt in request.prompts)
