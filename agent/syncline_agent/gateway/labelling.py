"""Requests whose answers come from weights: read, let in, asked of the engine, and their answers labelled."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from aiohttp import web

from syncline_agent.gateway import refusals
from syncline_agent.gateway.asking import Asked, BadBody, read_asked
from syncline_agent.gateway.counting import Tally, without_ids
from syncline_agent.gateway.door import Door, NotAdmitted, Pass
from syncline_agent.gateway.engine import Engine
from syncline_agent.gateway.exchange import Exchange
from syncline_agent.gateway.isolation import KvReuse, kv_of, name_body
from syncline_agent.gateway.labels import Label, label, unknown
from syncline_agent.gateway.measuring import GatewayMetrics
from syncline_agent.gateway.members import NotAnObject, read_object
from syncline_agent.gateway.mirror import Mirror
from syncline_agent.gateway.passing import pass_down
from syncline_agent.gateway.refusals import Code
from syncline_agent.gateway.relay import Down, TooLarge, headers_up, read_body
from syncline_agent.gateway.routes import Route
from syncline_agent.gateway.settings import GatewaySettings
from syncline_agent.gateway.streaming import LabelledStream
from syncline_agent.gateway.wanted import FIELD


class Labelling:
    """All such requests of one gateway."""

    def __init__(
        self,
        engine: Engine,
        mirror: Mirror,
        door: Door,
        settings: GatewaySettings,
        *,
        randomness: random.Random,
        metrics: GatewayMetrics,
    ) -> None:
        self._engine = engine
        self._mirror = mirror
        self._door = door
        self._settings = settings
        self._random = randomness
        self._metrics = metrics

    async def handle(self, request: web.BaseRequest, route: Route) -> web.StreamResponse:
        """EngineAway, EngineLost and ClientGone are the caller's."""
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            self._count("refused", Code.ENCODING)
            return refusals.error(Code.ENCODING, "a body must come uncompressed: it is read here")
        try:
            data = await read_body(request, self._settings)
            asked = read_asked(
                data, request.headers, kind=self._settings.engine_kind, shape=route.shape, randomness=self._random
            )
        except TooLarge:
            most = self._settings.most_body_bytes
            self._count("refused", Code.BODY_TOO_LARGE)
            return refusals.error(Code.BODY_TOO_LARGE, f"the body has more than {most} bytes")
        except TimeoutError:
            self._count("refused", Code.SLOW_BODY)
            return refusals.error(Code.SLOW_BODY, "the body did not come")
        except BadBody as error:
            self._count("refused", Code.BAD_REQUEST)
            return refusals.error(Code.BAD_REQUEST, str(error), param=error.param)
        if asked.wanted.session is not None and self._settings.kv_reuse is KvReuse.NEVER:
            self._count("refused", Code.NO_SESSIONS)
            message = "this pool has no sessions: it reuses no keys and values of older versions (--kv-reuse never)"
            return refusals.error(Code.NO_SESSIONS, message, param=FIELD)
        try:
            passed = await self._door.enter(asked.wanted)
        except NotAdmitted as error:
            self._count("refused", error.refusal.reason.value)
            return refusals.refused(error.refusal, error.seen)
        try:
            return await self._ask(request, route, asked, passed)
        finally:
            self._door.leave(passed)

    async def _ask(self, request: web.BaseRequest, route: Route, asked: Asked, passed: Pass) -> web.StreamResponse:
        headers = headers_up(request, request_id=asked.request_id, read=True)
        body = name_body(
            asked.body, asked.named, passed.place, session=asked.wanted.session, request_id=asked.request_id
        )
        query = request.rel_url.raw_query_string
        async with self._engine.ask(request.method, route.path, query, body=body, headers=headers) as answer:
            kind = answer.content_type
            plain = answer.headers.get("Content-Encoding", "identity").lower() == "identity"
            if answer.status == 200 and kind == "text/event-stream" and plain:
                return await self._stream(request, asked, passed, answer)
            # Who names versions gets nothing before it is known which it is of.
            if answer.status == 200 and (kind == "application/json" or asked.wanted.binds_tokens):
                return await self._whole(request, asked, passed, answer)
            response = await pass_down(request, answer, self._settings)
            self._count("answered" if answer.status < 400 else "failed", f"engine_{answer.status // 100}xx")
            return response

    async def _stream(
        self, request: web.BaseRequest, asked: Asked, passed: Pass, answer: Exchange
    ) -> web.StreamResponse:
        applied = passed.place.applied
        known = {} if applied is None else {"x-syncline-version-at-start": str(applied.version)}

        async def labels(tally: Tally) -> Label:
            return await self._label(asked, tally, passed)

        stream = LabelledStream(asked, labels, lambda found: self._say(found, asked))
        with Down(request, self._settings.stall_seconds) as down:
            response = await down.begin(answer, {"X-Request-Id": asked.request_id, **known})
            await stream.run(answer, down)
        self._count(*stream.outcome)
        return response

    async def _whole(
        self, request: web.BaseRequest, asked: Asked, passed: Pass, answer: Exchange
    ) -> web.StreamResponse:
        parts: list[bytes] = []
        size = 0
        while piece := await answer.piece():
            parts.append(piece)
            size += len(piece)
            if size > self._settings.most_answer_bytes:
                if asked.wanted.binds_tokens:
                    self._count("refused", Code.CROSSED)
                    most = self._settings.most_answer_bytes
                    return refusals.crossed_answer(
                        self._say(unknown(f"it has more than the {most} bytes that are read here"), asked)
                    )
                response = await pass_down(request, answer, self._settings, begun=b"".join(parts))
                self._count("answered", "unlabelled")
                return response
        data = b"".join(parts)
        try:
            told = read_object(data)
        except NotAnObject:
            told = None  # a list, of SGLang: headers say it
        tally = Tally(asked.choices)
        if told is not None:
            tally.whole(told.fields)
        found = await self._label(asked, tally, passed)
        said = self._say(found, asked)
        if not found.fits(asked.wanted):
            self._count("refused", Code.CROSSED)
            return refusals.crossed_answer(said)
        body = data if told is None else told.edited(more={FIELD: said})
        body = without_ids(body) if asked.hide_ids else body
        with Down(request, self._settings.stall_seconds) as down:
            response = await down.whole(answer, body, {"X-Request-Id": asked.request_id, **_headers(said)})
        self._count("answered", "")
        return response

    async def _label(self, asked: Asked, tally: Tally, passed: Pass) -> Label:
        """All tokens have arrived; only now may the agent be asked."""
        crossed = None
        if await self._mirror.fresh():
            crossed = self._mirror.since(passed.place)
            found = label(asked, tally.counts, passed.place, crossed, stamps=tally.stamps)
        else:
            found = unknown(f"the agent did not answer: {self._mirror.silence or 'it does again by now'}")
        known = None if found.unknown else crossed
        found = replace(found, kv=kv_of(asked.named, asked.wanted.session, asked.names, known))
        if found.unknown is None:
            self._metrics.spans.observe(found.most_spans)
        if found.end is not None:
            self._metrics.answered_version.set(found.end)
        return found

    def _say(self, found: Label, asked: Asked) -> dict[str, Any]:
        state = self._mirror.state
        epoch = self._mirror.epoch_of(found.served)
        return found.to_json(asked.request_id, None if state is None else state.run, epoch)

    def _count(self, outcome: str, reason: str) -> None:
        self._metrics.requests.labels(outcome, reason).inc()


def _headers(said: dict[str, Any]) -> dict[str, str]:
    told = {
        "x-syncline-version-start": said["start"],
        "x-syncline-version-end": said["end"],
        "x-syncline-lineage": said["lineage"],
        "x-syncline-epoch": said["epoch"],
        "x-syncline-digest": said["digest"],
        "x-syncline-kv": said["kv"],
    }
    return {name: str(value) for name, value in told.items() if value is not None}
