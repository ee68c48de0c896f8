"""What is said of an answer, by where the log stood and what came after: never more than is known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from syncline_agent.engine import Crossing
from syncline_agent.gateway.asking import Asked, read_asked
from syncline_agent.gateway.labels import label
from syncline_agent.gateway.mirror import Place
from syncline_agent.gateway.routes import Kind, Shape
from syncline_agent.gateway.wanted import Wanted
from syncline_agent.testing.lanes import applied

HERE = Place("log", 3, applied(7))


def asked(names: Sequence[str] | None = ("r",), choices: int | None = 1) -> Asked:
    return Asked(b"{}", "r", Wanted(), choices, names, False)


def commit(version: int, **spans: int) -> Crossing:
    return Crossing(applied(version - 1), applied(version), spans, ())


# (request, counts, place, what came after; start, end, versions of the spans or None, whether nobody can tell)
CASES: list[tuple[Asked, Any, Place, Any, Any, Any, Any, bool]] = [
    (asked(), [4], HERE, [], 7, 7, [[7]], False),
    (asked(), [0], HERE, [], None, None, [[]], False),
    (asked(), [None], HERE, [], 7, 7, [None], False),
    (asked(None, None), None, HERE, [], 7, 7, [], False),
    (asked(None, 0), [], HERE, [], 7, 7, [], False),
    (asked(), [4], HERE, [commit(8, r=2)], 7, 8, [[7, 8]], False),
    (asked(("r", "q"), 2), [4, 2], HERE, [commit(8, r=2, q=2)], 7, 8, [[7, 8], [7]], False),
    (asked(), [4], HERE, None, None, None, [], True),
    (asked(), [4], Place("log", 3, None), [], None, None, [], True),
    (asked(), [4], Place("log", 3, None), [commit(8)], 8, 8, [[8]], False),
    (asked(None), [4], HERE, [commit(8)], None, None, [], True),
    (asked(), [None], HERE, [commit(8, r=2)], None, None, [], True),
    (asked(), None, HERE, [commit(8, r=2)], None, None, [], True),
    (asked(), [1], HERE, [commit(8, r=2)], None, None, [], True),
    (asked((), 0), [], HERE, [commit(8)], None, None, [], True),
    (asked(), [4], HERE, [Crossing(applied(7), None, None, None)], None, None, [], True),
    (asked(("r", "q"), 2), [4, 1], HERE, [commit(8, r=2, q=2)], None, None, [], True),
]


@pytest.mark.parametrize("case", CASES, ids=map(str, range(len(CASES))))
def test_a_label_says_what_is_known(case: tuple[Asked, Any, Place, Any, Any, Any, Any, bool]) -> None:
    request, counts, place, crossed, *expected = case
    found = label(request, counts, place, crossed)
    versions = [None if c.spans is None else [span.version for span in c.spans] for c in found.choices]
    assert expected == [found.start, found.end, versions, found.unknown is not None]
    said = found.to_json("r", "demo", 4)
    assert ("unknown" in said) == expected[-1]
    assert 4 == said["epoch"]
    if found.end is not None:
        assert applied(found.end).digest[:12] == said["digest"]


def test_an_answer_fits_when_all_of_its_tokens_do_and_nobody_has_to_guess() -> None:
    crossed = label(asked(), [4], HERE, [commit(8, r=2)])
    unknown = label(asked(), [4], HERE, None)
    whole = label(asked(), [None], HERE, [])
    for wanted, fits in (
        (Wanted(), (True, True, True)),
        (Wanted(max_lag=0), (True, True, True)),
        (Wanted(min=7), (True, False, True)),
        (Wanted(min=8), (False, False, False)),
        (Wanted(exact=7), (False, False, True)),
    ):
        assert fits == tuple(found.fits(wanted) for found in (crossed, unknown, whole))


# (engine, route, body; choices, names behind the id, whether ids are asked for)
NAMES: list[tuple[Kind, Shape, str, Any, Any, bool]] = [
    (Kind.VLLM, Shape.COMPLETIONS, '{"prompt":"x"}', 1, ["cmpl-ID-0"], False),
    (Kind.VLLM, Shape.COMPLETIONS, '{"prompt":[1,2],"stream":true}', 1, ["cmpl-ID-0"], True),
    (Kind.VLLM, Shape.COMPLETIONS, '{"prompt":["x","y"],"n":null}', 2, ["cmpl-ID-0", "cmpl-ID-1"], True),
    (
        Kind.VLLM,
        Shape.COMPLETIONS,
        '{"prompt":[[1],[2]],"n":1,"return_token_ids":true}',
        2,
        ["cmpl-ID-0", "cmpl-ID-1"],
        False,
    ),
    (
        Kind.VLLM,
        Shape.COMPLETIONS,
        '{"prompt":["x","y"],"n":2}',
        4,
        ["0_cmpl-ID-0", "1_cmpl-ID-0", "0_cmpl-ID-1", "1_cmpl-ID-1"],
        True,
    ),
    (Kind.VLLM, Shape.COMPLETIONS, '{"prompt_embeds":"AA=="}', None, None, True),
    (Kind.VLLM, Shape.COMPLETIONS, '{"prompt":"x","use_beam_search":true,"n":2}', None, None, True),
    (Kind.VLLM, Shape.COMPLETIONS, '{"prompt":"x","n":"two"}', None, None, True),
    (Kind.VLLM, Shape.COMPLETIONS, '{"prompt":"x","n":5000}', None, None, True),
    (Kind.VLLM, Shape.CHAT, '{"messages":[],"n":2}', 2, ["0_chatcmpl-ID", "1_chatcmpl-ID"], True),
    (Kind.VLLM, Shape.CHAT, '{"messages":[]}', 1, ["chatcmpl-ID"], False),
    (Kind.VLLM, Shape.TOKENS, '{"token_ids":[1],"stream":true}', 1, ["generate-tokens-ID"], False),
    (
        Kind.VLLM,
        Shape.TOKENS,
        '{"sampling_params":{"n":2}}',
        2,
        ["0_generate-tokens-ID", "1_generate-tokens-ID"],
        False,
    ),
    (Kind.VLLM, Shape.EMBEDDINGS, '{"input":"x"}', 0, None, False),
    (Kind.REFERENCE, Shape.COMPLETIONS, '{"prompt":"x","n":2}', 2, ["ID-0", "ID-1"], True),
    (Kind.SGLANG, Shape.COMPLETIONS, '{"prompt":"x","stream":true}', 1, None, False),
    (Kind.SGLANG, Shape.NATIVE, '{"text":["x","y"]}', None, None, False),
    (Kind.SGLANG, Shape.NATIVE, '{"input_ids":[1,2]}', 1, None, False),
]


@pytest.mark.parametrize("row", NAMES, ids=[f"{r[0].value}-{r[1].value}-{n}" for n, r in enumerate(NAMES)])
def test_the_engine_s_name_for_each_choice_is_known_or_known_not_to_be(
    row: tuple[Kind, Shape, str, Any, Any, bool],
) -> None:
    kind, shape, body, choices, names, hides = row
    request = read_asked(body.encode(), {}, kind=kind, shape=shape, randomness=random.Random(1))
    behind = None if request.names is None else [name.replace(request.request_id, "ID") for name in request.names]
    assert (choices, names, hides) == (request.choices, behind, request.hide_ids)
    assert hides == (b'"return_token_ids":true' in request.body and '"return_token_ids"' not in body)


def test_no_id_is_given_twice_and_a_caller_s_own_stands_in_front_if_it_is_plain() -> None:
    draw = random.Random(1)
    ids: list[str] = []
    for given in ("mine", "mine", "a b", "é", "x" * 129, "", "a\r\nb"):
        read = read_asked(b"{}", {"X-Request-Id": given}, kind=Kind.VLLM, shape=Shape.CHAT, randomness=draw)
        ids.append(read.request_id)
    assert len(set(ids)) == len(ids)
    assert [True, True, False, False, False, False, False] == ["-" in one for one in ids]
    in_body = read_asked(
        b'{"request_id":"b"}', {"X-Request-Id": "h"}, kind=Kind.VLLM, shape=Shape.CHAT, randomness=draw
    )
    assert in_body.request_id.startswith("b-")
    assert b"{}" == in_body.body
