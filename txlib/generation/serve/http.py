"""The engine behind OpenAI's paths, and at `/` a page that draws its blocks."""

import asyncio
import json
import math
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from txlib.generation.chat import Template, answer_ends
from txlib.generation.config import GenerationConfig
from txlib.generation.prompts import end_tokens
from txlib.generation.serve.engine import Engine, QueueFull, Request
from txlib.generation.text_generator import TextPieces, Tokenizer
from txlib.hints import did_you_mean
from txlib.paths import optional_package

with optional_package():
    import uvicorn
    from jinja2 import TemplateError
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request as Call
    from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

MAX_BYTES = 1 << 20  # of a call's body
WHOLE, REAL = ("max_tokens", "max_completion_tokens", "seed", "top_k"), ("temperature", "top_p", "min_p")
PENALTIES = "repetition_penalty", "presence_penalty", "frequency_penalty"
OPTIONS: dict[str, tuple[type, ...]] = {
    **{"model": (str,), "messages": (list,), "prompt": (str, list), "stop": (str, list), "stream": (bool,)},
    **dict.fromkeys(WHOLE, (int,)) | dict.fromkeys(REAL + PENALTIES, (float, int)),
}
WORDS = {str: "a text", list: "a list", bool: "true or false", int: "a whole number", float: "a number"}


class Server:
    """Answers calls by an engine that steps in another thread whenever there is something to do.

    Args:
        name: of the model; a call may leave it out.
        template: of conversations; None: the model only continues texts.
        max_new_tokens: most tokens of an answer.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        name: str,
        template: Template | None = None,
        max_new_tokens: int = 256,
    ):
        self.engine, self.tokenizer, self.name, self.template = engine, tokenizer, name, template
        self.max_new_tokens, self.wake = max_new_tokens, asyncio.Event()
        self.ends = end_tokens(engine.model.config, None)
        if template is not None:
            self.ends = answer_ends(template, self.ends)

    def app(self) -> Starlette:
        """Return the application, for any ASGI server."""

        async def models(call: Call) -> Response:
            return JSONResponse({"object": "list", "data": [{"id": self.name, "object": "model", "owned_by": "txlib"}]})

        async def stats(call: Call) -> Response:
            return JSONResponse(self.engine.stats())

        async def page(call: Call) -> Response:
            return HTMLResponse(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))

        completions = (Route(f"/v1/{kind}completions", self.complete, methods=["POST"]) for kind in ("", "chat/"))
        routes = [*completions, Route("/v1/models", models), Route("/stats", stats), Route("/", page)]
        return Starlette(routes=routes, lifespan=self.working, exception_handlers={HTTPException: refuse})

    @asynccontextmanager
    async def working(self, app: Starlette) -> AsyncIterator[None]:
        """Let the engine work while the application runs."""
        work = asyncio.create_task(self.work())
        yield
        work.cancel()

    async def work(self) -> None:
        """Step as long as there are texts, then wait for the next."""
        while True:
            while self.engine.busy:
                try:
                    await asyncio.to_thread(self.engine.step)
                except Exception as error:  # the engine has ended this step's texts; the others go on
                    print(f"txlib serve: a step failed: {error}", flush=True)
            self.wake.clear()
            await self.wake.wait()

    async def complete(self, call: Call) -> Response:
        """Continue a text or a conversation, and answer at once or piece by piece."""
        body, chat = await read_json(call), "/chat/" in call.url.path
        loop, tokens = asyncio.get_running_loop(), asyncio.Queue[int | None]()
        try:
            ids, config, stops = self.understand(body, chat)
            request = self.engine.submit(
                ids, config, listen=lambda token: loop.call_soon_threadsafe(tokens.put_nowait, token)
            )
        except (ValueError, TypeError, TemplateError) as error:
            raise HTTPException(429 if isinstance(error, QueueFull) else 400, str(error)) from None
        self.wake.set()
        pieces = self.pieces(request, tokens, TextPieces(self.tokenizer, self.ends, stops))
        answer = {"id": f"cmpl-{uuid4().hex}", "created": int(time.time()), "model": self.name}
        if body.get("stream"):
            return StreamingResponse(events(answer, chat, request, pieces), media_type="text/event-stream")
        writing, leaving = asyncio.create_task(join(pieces)), asyncio.create_task(disconnected(call))
        await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if not writing.done():
            writing.cancel()
            return Response(status_code=499)  # nobody reads it
        prompt, new = request.prompt_length, len(request.ids) - request.prompt_length
        usage = {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
        return JSONResponse(answer | choice(chat, "message", writing.result(), request.finished) | {"usage": usage})

    async def pieces(
        self, request: Request, tokens: "asyncio.Queue[int | None]", text: TextPieces
    ) -> AsyncIterator[str]:
        """Yield the text as its tokens come. If nobody listens any more, the request ends."""
        try:
            while not text.stopped and (token := await tokens.get()) is not None:
                yield text.add(token)
            if request.finished == "error":
                raise HTTPException(500, "the model failed while it wrote this text")
            request.finished = request.finished or "stop"
            yield text.rest()
        finally:
            self.engine.cancel(request)
            self.wake.set()

    def understand(self, body: dict[str, Any], chat: bool) -> tuple[list[int], GenerationConfig, list[str]]:
        """Return a call's prompt as tokens, how to choose and when to stop, and the texts that end it.

        Raises:
            ValueError: saying what is wrong.
        """
        check_options(body)
        given = {name: value for name, value in body.items() if value is not None}
        if given.get("model", self.name) != self.name:
            raise ValueError(f"there is no model {given['model']!r} here, only {self.name!r}")
        ids = self.conversation(given.get("messages")) if chat else self.text(given.get("prompt"))
        stops = given.get("stop", [])
        stops = [stops] if isinstance(stops, str) else stops
        if not all(isinstance(stop, str) and stop for stop in stops):
            raise ValueError(f"stop={stops!r:.80} must be one or more texts")
        room = self.engine.model.config.max_length - len(ids)
        most = given.get("max_completion_tokens", given.get("max_tokens", max(1, min(self.max_new_tokens, room))))
        if most > self.max_new_tokens:
            raise ValueError(f"max_tokens={most} is more than this server writes, {self.max_new_tokens}")
        greedy = 0 <= given.get("temperature", 1) < 1e-5
        names = [*PENALTIES, "seed"] if greedy else [*PENALTIES, "seed", "top_k", *REAL]
        options = {name: given[name] for name in names if name in given}
        return ids, GenerationConfig(max_new_tokens=most, do_sample=not greedy, eos_id=self.ends, **options), stops

    def text(self, prompt: str | list[Any] | None) -> list[int]:
        """Return the tokens of a text, or those that are given."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if prompt is None or not all(type(token) is int for token in prompt):
            raise ValueError("prompt must be one text, or a list of tokens")
        return prompt

    def conversation(self, messages: list[Any] | None) -> list[int]:
        """Return the tokens of a conversation, after which the assistant writes."""
        if self.template is None:
            raise ValueError(f"{self.name} has no chat template and only continues texts; call /v1/completions")
        for message in messages or [None]:
            role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
            if role not in ("system", "user", "assistant") or not isinstance(content, str):
                form = '{"role": "system", "user" or "assistant", "content": a text}'
                raise ValueError(f"messages must be a list of {form}, and holds {message!r:.80}")
        return self.template.encode(messages or [])


def check_options(body: dict[str, Any]) -> None:
    """Refuse unknown options and values of a wrong type.

    Raises:
        ValueError: naming the option.
    """
    for name, value in body.items():
        if name not in OPTIONS:
            hint = did_you_mean(name, OPTIONS) or f"; there are {', '.join(OPTIONS)}"
            raise ValueError(f"there is no option {name!r:.80}{hint}")
        if value is not None and (type(value) not in OPTIONS[name] or value in (math.inf, -math.inf) or value != value):
            words = " or ".join(WORDS[kind] for kind in OPTIONS[name] if kind is not int or OPTIONS[name] == (int,))
            raise ValueError(f"{name}={value!r:.80} must be {words}")
    if not 0 <= (body.get("seed") or 0) < 2**63:
        raise ValueError(f"seed={body['seed']} must be from 0 to 2**63 - 1")


async def read_json(call: Call) -> dict[str, Any]:
    """Return the JSON object that a call sends.

    Raises:
        HTTPException: when it is too long or something else.
    """
    body = b""
    async for part in call.stream():
        body += part
        if len(body) > MAX_BYTES:
            raise HTTPException(413, f"the body has more than {MAX_BYTES} bytes")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise HTTPException(400, f"the body must be a JSON object, got {body[:40].decode(errors='replace')}")
    return value


def choice(chat: bool, kind: str, text: str, finish: str | None) -> dict[str, Any]:
    """Return a whole answer ("message") or a piece of one ("delta") in OpenAI's form."""
    name = ("chat.completion.chunk" if kind == "delta" else "chat.completion") if chat else "text_completion"
    said = {kind: {"role": "assistant", "content": text}} if chat else {"text": text}
    return {"object": name, "choices": [{"index": 0, **said, "finish_reason": finish}]}


async def events(answer: dict, chat: bool, request: Request, pieces: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield an answer as server-sent events."""
    try:
        async for piece in pieces:
            if piece:
                yield f"data: {json.dumps(answer | choice(chat, 'delta', piece, None))}\n\n"
        yield f"data: {json.dumps(answer | choice(chat, 'delta', '', request.finished))}\n\n"
    except HTTPException as error:
        yield f"data: {json.dumps({'error': {'message': error.detail}})}\n\n"
    yield "data: [DONE]\n\n"


async def join(pieces: AsyncIterator[str]) -> str:
    """Return all pieces as one text."""
    return "".join([piece async for piece in pieces])


async def disconnected(call: Call) -> None:
    """Wait until the client is gone."""
    while (await call.receive())["type"] != "http.disconnect":
        pass


async def refuse(call: Call, error: Any) -> Response:
    """Return an error in OpenAI's form."""
    kind = "server_error" if error.status_code >= 500 else "invalid_request_error"
    return JSONResponse({"error": {"message": error.detail, "type": kind}}, error.status_code)


def serve_forever(server: Server, host: str, port: int) -> None:
    """Serve until Ctrl-C or SIGTERM; calls that have begun are answered first.

    Raises:
        OSError: when the address cannot be had.
    """
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise OSError(f"can't listen on {host}:{port}: {reason}; choose another --port or --host") from None
    host, port = listener.getsockname()[:2]
    print(
        f"{server.name} answers at http://{host}:{port}/v1 and is drawn at http://{host}:{port}; Ctrl-C stops it",
        flush=True,
    )
    config = uvicorn.Config(server.app(), log_level="warning", timeout_graceful_shutdown=30)
    uvicorn.Server(config).run(sockets=[listener])
