"""A stream of events from the engine to the client, with the label of its versions in the event that ends its last choice.

That event waits until the agent was asked which commits the answer crossed; no other waits for anything. A stream that ends
without such an event gets one of its own.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson

from syncline_agent.gateway import refusals
from syncline_agent.gateway.asking import Asked
from syncline_agent.gateway.counting import Tally, without_ids
from syncline_agent.gateway.events import Events, TooLong, make_event, payload, with_payload
from syncline_agent.gateway.exchange import EngineLost, Exchange
from syncline_agent.gateway.labels import Label, unknown
from syncline_agent.gateway.refusals import Code
from syncline_agent.gateway.relay import Down
from syncline_agent.gateway.wanted import FIELD

Labels = Callable[[Tally], Awaitable[Label]]
"""The label of an answer that has come."""
_COMMON = ("id", "object", "created", "model", "request_id")


class LabelledStream:
    """One answer on its way down."""

    def __init__(self, asked: Asked, labels: Labels, say: Callable[[Label], dict[str, Any]]) -> None:
        self._asked = asked
        self._labels = labels
        self._say = say
        self._events = Events()
        self._tally = Tally(asked.choices)
        self._newest: bytes | None = None
        self._waits: bytes | None = None
        """An event that must wait for its label."""
        self._whole = False
        """What comes is passed on unread."""
        self._failed = False
        """The engine itself said an error, so the answer is none."""
        self._over = False
        """Labelled, or told to be of other versions than asked for: no label follows."""
        self.outcome = "answered", ""

    async def run(self, answer: Exchange, down: Down) -> None:
        """To its end, whatever that is; ClientGone when the client is."""

        def take(piece: bytes) -> bool:
            if self._whole:
                down.keep(piece)
            else:
                self._events.feed(piece)
            return self._go_on(down)

        try:
            while not answer.over:
                await answer.pour(take)
                await self._wait(down)
            if self._labels_still and self._events.rest:
                # What follows must not be taken for more of an event whose blank line never came.
                self._events.feed(b"\n\n")
                await self._wait(down)
            down.keep(self._events.rest)
            if self._labels_still:
                await self._trail(down)
            elif self._whole and not self._over and self._asked.wanted.binds_tokens:
                down.keep(b"\n\n")
                self._refuse(unknown("it has an event that is too long to be read"), down)
        except EngineLost as error:
            self.outcome = "failed", Code.ENGINE_LOST
            down.keep(refusals.event_of(refusals.make_error(str(error), kind="unavailable", code=Code.ENGINE_LOST)))
        await down.end()

    @property
    def _labels_still(self) -> bool:
        return not self._over and not self._failed and not self._whole

    def _go_on(self, down: Down) -> bool:
        """All that came, as far as nothing must be waited for: within the call that brought it."""
        try:
            while (event := self._events.next()) is not None:
                if not self._pass(event, down):
                    self._waits = event
                    return False
        except TooLong:
            self._whole = True
            self.outcome = "answered", "unlabelled"
            down.keep(self._events.rest)
            self._events = Events()
        return down.send()

    async def _wait(self, down: Down) -> None:
        """For what `_go_on` could not do at once: the agent, a client that reads slowly."""
        while True:
            if self._waits is not None:
                event, self._waits = self._waits, None
                await self._end(event, down)
            await down.flush()
            if self._go_on(down):
                return

    def _pass(self, event: bytes, down: Down) -> bool:
        """Send an event on; False for one that must wait for a label. Every token comes this way: nothing here is dear."""
        data = payload(event)
        told = None if data is None or not data.startswith(b"{") else read_event(data)
        if told is None:
            if data == b"[DONE]" and not self._over and not self._failed:
                return False
            if data != b"[DONE]" and b"data:" in event:
                self._tally.hide()
            down.keep(event)
            return True
        self._newest = data
        if "error" in told:
            self._failed = True
        if self._tally.event(told) and not self._over and FIELD not in told:
            return False
        down.keep(without_ids(event) if self._asked.hide_ids else event)
        return True

    async def _end(self, event: bytes, down: Down) -> None:
        """The event that ends the last choice, or the stream."""
        data = payload(event)
        if data is None or data == b"[DONE]":
            await self._trail(down)
            down.keep(event)
            return
        shown = without_ids(data) if self._asked.hide_ids else data
        await down.flush()
        label = await self._labels(self._tally)
        if label.fits(self._asked.wanted):
            shown = shown[: shown.rindex(b"}")] + b',"' + FIELD.encode() + b'":' + _dumps(self._say(label)) + b"}"
            self._over = True
            down.keep(with_payload(event, data, shown))
        else:
            down.keep(with_payload(event, data, shown))
            self._refuse(label, down)

    async def _trail(self, down: Down) -> None:
        """The label as an event of its own."""
        await down.flush()
        label = await self._labels(self._tally)
        if not label.fits(self._asked.wanted):
            self._refuse(label, down)
            return
        newest = json.loads(self._newest or b"{}")
        common = {name: newest[name] for name in _COMMON if name in newest}
        down.keep(make_event(_dumps({**common, "choices": [], FIELD: self._say(label)})))
        self._over = True

    def _refuse(self, label: Label, down: Down) -> None:
        down.keep(refusals.event_of(refusals.crossed(self._say(label))))
        self._over = True
        self.outcome = "refused", Code.CROSSED


def read_event(data: bytes) -> Mapping[str, Any] | None:
    """What an event carries, where that is an object."""
    try:
        told = orjson.loads(data)
    except ValueError:
        told = _loads_slowly(data)
    return told if isinstance(told, dict) else None


def _loads_slowly(data: bytes) -> Any:
    """What engines say that is no JSON by the letter, as a NaN is."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
