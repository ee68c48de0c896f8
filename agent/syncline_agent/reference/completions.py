"""`POST /v1/completions`: one request from its body to its last byte.

Submits the request's choices, collects what the scheduler delivers on the event loop, and writes one JSON answer or a
stream of server-sent events. A client that goes away aborts its choices.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

from aiohttp import web

from syncline.clock import Clock
from syncline.errors import EngineUnavailable
from syncline.metrics import Metrics
from syncline_agent.reference import answers
from syncline_agent.reference.answers import Answer, Header
from syncline_agent.reference.choices import Choice, Output
from syncline_agent.reference.requests import BadRequest, CompletionRequest, Limits, checked_id, parse
from syncline_agent.reference.scheduler import Scheduler
from syncline_agent.reference.stopping import TextStream

RETRY_AFTER_S = "1"
STATUS = {"model_not_found": 404, "request_id_in_use": 409}


class Completions:
    """The endpoint over one scheduler."""

    def __init__(
        self, scheduler: Scheduler, limits: Limits, *, clock: Clock, randomness: random.Random, metrics: Metrics
    ) -> None:
        self._scheduler = scheduler
        self._limits = limits
        self._clock = clock
        self._random = randomness
        self._metrics = metrics
        self._names: set[str] = set()
        """Of the requests in flight: spans are told by them."""

    async def handle(self, http: web.Request) -> web.StreamResponse:
        try:
            request = parse(await _json(http), self._limits, self._random)
            given = request.request_id or checked_id(http.headers.get("X-Request-Id"))
            if given in self._names:
                raise BadRequest(f"a request {given} is in flight already", "request_id", code="request_id_in_use")
        except BadRequest as refusal:
            self._metrics.requests.labels(outcome="refused").inc()
            status = STATUS.get(refusal.code, 400)
            kind = "invalid_request_error"
            return web.json_response(
                answers.error(str(refusal), kind=kind, param=refusal.param, code=refusal.code), status=status
            )
        name = given or f"{self._random.getrandbits(96):024x}"
        self._names.add(name)
        try:
            return await self._serve(http, request, name)
        finally:
            self._names.discard(name)

    async def _serve(self, http: web.Request, request: CompletionRequest, name: str) -> web.StreamResponse:
        header = Header(f"cmpl-{name}", int(self._clock.now()), self._limits.model)
        collected = [
            Answer(number, prompt) for number, prompt in enumerate(p for p in request.prompts for _ in range(request.n))
        ]
        outputs: asyncio.Queue[Output] = asyncio.Queue()
        choices = [self._choice(request, answer, name, outputs) for answer in collected]
        try:
            self._scheduler.submit(choices)
        except EngineUnavailable as error:
            self._metrics.requests.labels(outcome="unavailable").inc()
            return _unavailable(str(error))
        outcome = "disconnect"
        try:
            steps = self._outputs(outputs, collected)
            if request.stream:
                response = await self._stream(http, request, header, collected, steps)
            else:
                response = await self._whole(request, header, collected, steps)
            outcome = answers.outcome(collected)
            return response
        finally:
            if outcome == "disconnect":
                self._scheduler.abort(choices)
            self._metrics.requests.labels(outcome=outcome).inc()
            for answer in collected:
                self._metrics.request_spans.observe(len(answer.outputs[-1].spans) if answer.outputs else 0)

    def _choice(self, request: CompletionRequest, answer: Answer, name: str, outputs: asyncio.Queue[Output]) -> Choice:
        tokenizer = self._limits.tokenizer
        loop = asyncio.get_running_loop()

        def deliver(output: Output) -> None:
            try:
                loop.call_soon_threadsafe(outputs.put_nowait, output)
            except RuntimeError:
                pass  # the server has stopped; nobody waits for this any more

        return Choice(
            request_id=f"{name}-{answer.number}",
            number=answer.number,
            prompt=answer.prompt,
            params=request.params(answer.number),
            max_tokens=request.max_tokens,
            text=TextStream((lambda ids: "") if tokenizer is None else tokenizer.decode, request.stops),
            deliver=deliver,
            end_token=None if tokenizer is None or request.ignore_eos else tokenizer.end,
            top=request.logprobs or 0,
        )

    async def _outputs(self, outputs: asyncio.Queue[Output], collected: Sequence[Answer]) -> AsyncIterator[Output]:
        """Every output as it comes, noted in its answer, until each choice has had its last."""
        running = len(collected)
        while running:
            output = await outputs.get()
            collected[output.choice].outputs.append(output)
            running -= output.is_last
            yield output

    async def _whole(
        self, request: CompletionRequest, header: Header, collected: Sequence[Answer], steps: AsyncIterator[Output]
    ) -> web.Response:
        failed: str | None = None
        async for output in steps:
            failed = failed or output.error
        if failed is not None:
            return _unavailable(failed)
        whole = [answers.choice(answer, request, self._text) for answer in collected]
        return web.json_response(header.around(whole, usage=answers.usage(collected, request.n)))

    async def _stream(
        self,
        http: web.Request,
        request: CompletionRequest,
        header: Header,
        collected: Sequence[Answer],
        steps: AsyncIterator[Output],
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        await response.prepare(http)
        offsets = [0] * len(collected)
        async for output in steps:
            if output.error is not None:
                await _event(response, answers.error(output.error, kind="unavailable", code="engine_out_of_service"))
                continue
            at = output.choice
            body = answers.chunk([output], request, self._text, offset=offsets[at])
            offsets[at] += 0 if output.token is None else len(self._text(output.token))
            if request.return_token_ids and len(collected[at].outputs) == 1:
                body["prompt_token_ids"] = list(collected[at].prompt)
            await _event(response, header.around([body]))
        if request.include_usage:
            await _event(response, header.around([], usage=answers.usage(collected, request.n)))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _text(self, token: int) -> str:
        return self._limits.tokenizer.decode([token]) if self._limits.tokenizer else ""


async def _json(http: web.Request) -> Any:
    try:
        return json.loads(await http.text())
    except (ValueError, LookupError, RecursionError) as error:  # not UTF-8, an unknown charset, too deep
        raise BadRequest(f"the body is not JSON: {error}") from error


async def _event(response: web.StreamResponse, body: Any) -> None:
    await response.write(b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n")


def _unavailable(message: str) -> web.Response:
    return web.json_response(
        answers.error(message, kind="unavailable", code="engine_out_of_service"),
        status=503,
        headers={"Retry-After": RETRY_AFTER_S},
    )
