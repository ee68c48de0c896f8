"""The bytes between agent and arm: what is sent is what arrives, and everything else is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline import errors
from syncline.errors import EngineUnavailable, ProtocolViolation
from syncline.versions import Policy
from syncline.wire.tiling import Tiling
from syncline_agent.arm import framing, messages
from syncline_agent.arm.parts import from_stage_message, stage_message
from syncline_agent.engine import DeltaFiles, StageRequest

STATE = messages.State(applied=None, error="no weights", failed="out of service")
APPLIED = messages.AppliedPart(lineage="ab" * 16, view="main", version=3, digest="cd" * 16, proven=True)
BAND = messages.BandPart(tensor="a.weight", axis=0, low=0, high=7, digest="ef" * 16)
HELLO = messages.Hello(
    protocol=3,
    engine="e",
    pool="p",
    pod="o",
    rank=0,
    ranks=1,
    gate=True,
    token="t",
    instance=None,
    holds=None,
    state=STATE,
)
EVERY = [
    STATE,
    messages.State(applied=APPLIED, error=None, failed=None),
    HELLO,
    HELLO.model_copy(update={"holds": [BAND], "gate": False}),
    HELLO.model_copy(update={"rank": None, "instance": "9f"}),
    messages.Welcome(protocol=3),
    messages.Refused(message="no"),
    messages.Ready(id=1, target=2, undo=False),
    messages.Scatter(id=1, target=2),
    messages.Confirm(id=1, target=2),
    messages.Discard(id=1),
    messages.Sweep(id=1),
    messages.Prove(id=1, version=2, digest="cd" * 16),
    messages.Hold(id=1, policy=Policy.DRAIN),
    messages.Write(id=1),
    messages.Resume(id=1, version=2),
    messages.Publish(id=1),
    messages.Release(id=1),
    messages.Fail(id=1, reason="no"),
    messages.Open(id=1),
    messages.Staged(id=1, target=2, changed=3, staged_bytes=4, seconds=0.5, digests=None),
    messages.Staged(id=1, target=2, changed=3, staged_bytes=4, seconds=0.5, digests=["ef" * 16]),
    messages.Confirmed(id=1, applied=APPLIED),
    messages.Swept(id=1, applied=APPLIED, digests=["ef" * 16]),
    messages.Held(id=1, spans={"r-0": 7}, ended=["r-1"]),
    messages.Resumed(id=1, pause_seconds=0.25),
    messages.Done(id=1),
    messages.Failed(id=1, error="DigestMismatch", message="no"),
]
PREFIX = framing.LENGTH.size


@pytest.mark.parametrize("message", EVERY, ids=lambda m: m.type)
def test_a_message_comes_out_as_it_went_in(message: messages.Message) -> None:
    data = framing.encode(message)
    assert len(data) - PREFIX == framing.body_length(data[:PREFIX])
    assert message == framing.decode(data[PREFIX:])


def test_the_length_is_four_bytes_little_endian() -> None:
    data = framing.encode(messages.Done(id=7))
    assert len(data) - 4 == int.from_bytes(data[:4], "little")
    assert {"type": "done", "id": 7} == json.loads(data[4:])


def test_every_type_of_the_page_exists_and_no_other() -> None:
    page = (Path(messages.__file__).parent / "PROTOCOL.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip().strip("`") for line in page.splitlines() if line.startswith("| `")]
    assert sorted({m.type for m in EVERY} | {"stage"}) == sorted(rows)


def test_a_stage_request_travels_with_paths_that_the_other_side_can_see() -> None:
    mine, theirs = Path("/mine/node"), Path("/theirs")
    request = StageRequest(
        lineage="ab",
        view="main",
        base=1,
        base_digest="cd",
        target=3,
        target_digest="ef",
        table=mine / "tables/t.json",
        tiling=Tiling(64, 256, 4),
        deltas=[DeltaFiles(2, "01", [mine / "chunks/a", mine / "chunks/b"]), DeltaFiles(3, "02", [])],
        checkpoint=Path("/elsewhere/checkpoint"),
    )
    message = framing.decode(framing.encode(stage_message(5, request, mine))[PREFIX:])
    assert isinstance(message, messages.Stage)
    seen = from_stage_message(message, theirs)
    assert theirs / "tables/t.json" == seen.table
    assert [theirs / "chunks/a", theirs / "chunks/b"] == list(seen.deltas[0].chunks)
    assert Path("/elsewhere/checkpoint") == seen.checkpoint
    assert (request.base, request.tiling) == (seen.base, seen.tiling)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        framing.decode(body)


@pytest.mark.parametrize(
    "body",
    [
        {"type": "done"},
        {"type": "done", "id": "1"},
        {"type": "done", "id": 1, "more": 2},
        {"type": "dance", "id": 1},
        {"type": "hold", "id": 1, "policy": "hope"},
        ["done"],
    ],
)
def test_a_message_with_a_field_too_few_too_many_or_of_another_kind_is_refused(body: object) -> None:
    with pytest.raises(ProtocolViolation, match="not a message of protocol 3"):
        framing.decode(json.dumps(body).encode())


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_hello_of_another_protocol_is_refused_by_its_number(protocol: int) -> None:
    with pytest.raises(ProtocolViolation, match=f"speaks protocol {protocol}"):
        framing.decode(json.dumps({"type": "hello", "protocol": protocol, "holds": "whole"}).encode())


def test_a_hello_that_holds_fifty_thousand_bands_fits_in_a_message() -> None:
    bands = [{"tensor": f"{n:0200}", "axis": 1, "low": n, "high": 1 << 40, "digest": "ef" * 16} for n in range(50_000)]
    hello = HELLO.model_copy(update={"holds": [messages.BandPart(**band) for band in bands]})
    data = framing.encode(hello)
    assert hello == framing.decode(data[PREFIX:])
    with pytest.raises(ProtocolViolation, match="beyond"):
        framing.encode(hello.model_copy(update={"holds": [*(hello.holds or ()), *(hello.holds or ())]}))


def test_a_length_beyond_the_bound_is_refused_before_anything_is_read() -> None:
    with pytest.raises(ProtocolViolation, match="beyond"):
        framing.body_length(framing.LENGTH.pack(framing.MESSAGE_MAX_BYTES + 1))


@pytest.mark.parametrize("name", ["EngineUncertain", "DigestMismatch", "FrameCorrupt", "LayoutRefused"])
def test_an_error_keeps_its_name_on_the_way(name: str) -> None:
    kind = getattr(errors, name)
    failed = messages.failure(4, kind("version 3 of tensor x"))
    assert kind is type(messages.raised(failed))
    assert "version 3 of tensor x" == str(messages.raised(failed))


def test_an_error_without_a_name_of_ours_means_that_nothing_was_written() -> None:
    error = messages.raised(messages.failure(4, ZeroDivisionError("no")))
    assert EngineUnavailable is type(error)
    assert "ZeroDivisionError: no" == str(error)


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": 1 << 40},
        {"ranks": 0},
        {"rank": -1},
        {"pod": "p" * 257},
        {"token": "t" * 257},
        {"holds": [{}]},
        {"holds": [json.loads(BAND.model_dump_json()) | {"high": 1 << 60}]},
        {"holds": [json.loads(BAND.model_dump_json()) | {"low": -1}]},
        {"holds": [json.loads(BAND.model_dump_json()) | {"axis": 99}]},
        {"holds": [json.loads(BAND.model_dump_json()) | {"tensor": "t" * 600}]},
        {"holds": [json.loads(BAND.model_dump_json()) | {"digest": "?"}]},
    ],
)
def test_a_hello_beyond_its_bounds_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ProtocolViolation, match="not a message of protocol 3"):
        framing.decode(json.dumps(json.loads(HELLO.model_dump_json()) | change).encode())


@pytest.mark.parametrize("change", [{"version": 0}, {"version": 10**12}, {"digest": "cd"}, {"lineage": "no"}])
def test_a_state_that_no_record_could_hold_is_refused(change: dict[str, object]) -> None:
    state = json.loads(messages.State(applied=APPLIED, error=None, failed=None).model_dump_json())
    state["applied"] |= change
    with pytest.raises(ProtocolViolation, match="not a message of protocol 3"):
        framing.decode(json.dumps(state).encode())


def test_a_reason_of_any_length_and_any_bytes_can_be_said() -> None:
    said = messages.failure(4, OSError("no file \udcff" + "x" * (32 << 20)))
    heard = framing.decode(framing.encode(said)[PREFIX:])
    assert isinstance(heard, messages.Failed)
    assert heard.message.startswith("no file ?xxx")
    assert messages.REASON_MAX == len(heard.message)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("staged", {"changed": -1}),
        ("staged", {"staged_bytes": 10**400}),
        ("staged", {"seconds": float("inf")}),
        ("staged", {"target": 0}),
        ("held", {"spans": {"r-0": -7}}),
        ("resumed", {"pause_seconds": float("nan")}),
        ("resumed", {"pause_seconds": -0.5}),
    ],
)
def test_an_answer_with_numbers_that_cannot_be_is_refused(kind: str, change: dict[str, object]) -> None:
    answer = next(message for message in EVERY if message.type == kind)
    with pytest.raises(ProtocolViolation, match="not a message of protocol 3"):
        framing.decode(json.dumps(json.loads(answer.model_dump_json()) | change).encode())


def test_spans_of_requests_with_any_name_can_be_said() -> None:
    said = messages.Held(id=1, spans={"r-\ud800": 7}, ended=None)
    assert messages.Held(id=1, spans={"r-?": 7}, ended=None) == framing.decode(framing.encode(said)[PREFIX:])
