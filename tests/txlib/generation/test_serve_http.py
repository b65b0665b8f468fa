"""The endpoint with a real server: answers as `generate` gives them, refusals in one sentence, clients that vanish."""

import http.client
import json
import re
import socket
import threading
import time
from contextlib import contextmanager

import pytest
import torch
from oracles import shake

from txlib.generation import generate
from txlib.generation.serve import Engine
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from txlib.generation.serve.http import Server, serve_forever  # noqa: E402


class Letters:
    """A tokenizer of 26 letters and a space."""

    def encode(self, text):
        return [0 if letter == " " else ord(letter) - 96 for letter in text]

    def decode(self, ids):
        return "".join(" " if token == 0 else chr(token + 96) for token in ids)


class Marks:
    """A template of conversations: "a" before what the user says, "b" before what the assistant does, "z" ends it."""

    end_id = 26

    def encode(self, messages):
        text = "".join(
            {"user": "a", "assistant": "b", "system": ""}[each["role"]] + each["content"] for each in messages
        )
        return Letters().encode(text + "b")


def make():
    torch.manual_seed(0)
    block = BlockConfig.of_sizes(16, 2, 24, position="rotary")
    return shake(GPT(GPTConfig(27, block, layers=1, max_length=64)), 0.8).eval()


@contextmanager
def serving(model=None, template=None, **options):
    """A server at a free port, in a thread; yields it with its port."""
    server = Server(Engine(model or make(), **options), Letters(), "tiny", template, max_new_tokens=40)
    listener = socket.create_server(("127.0.0.1", 0))
    runner = uvicorn.Server(uvicorn.Config(server.app(), log_level="warning"))
    thread = threading.Thread(target=runner.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield server, listener.getsockname()[1]
    finally:
        runner.should_exit = True
        thread.join()


def ask(port, path, body=None):
    """The status and the text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body)
    connection.request("GET" if body is None else "POST", path, data)
    response = connection.getresponse()
    return response.status, response.read().decode()


def wait_for(condition):
    for _ in range(500):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def test_clients_side_by_side_get_what_generate_gives():
    model = make()
    prompts = ["hello there", "hello you", "x", "the same the same", "hello there"] * 2
    alone = [Letters().decode(generate(model, [Letters().encode(prompt)], max_new_tokens=8)[0]) for prompt in prompts]
    answers = {}
    with serving(model, max_running=6, cache_tokens=256) as (server, port):

        def client(number):
            body = {
                "model": "tiny",
                "prompt": prompts[number],
                "max_tokens": 8,
                "temperature": 0,
                "stream": number % 2 > 0,
            }
            answers[number] = ask(port, "/v1/completions", body)

        clients = [threading.Thread(target=client, args=(number,)) for number in range(len(prompts))]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        assert not server.engine.busy and set(server.engine.pool.references) == {0}
    for number, wanted in enumerate(alone):
        status, text = answers[number]
        assert status == 200
        if number % 2:
            *pieces, done = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
            assert done == "[DONE]"
            choices = [json.loads(piece)["choices"][0] for piece in pieces]
            assert "".join(choice["text"] for choice in choices) == wanted
            assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
        else:
            answer = json.loads(text)
            assert answer["choices"][0]["text"] == wanted and answer["choices"][0]["finish_reason"] == "length"
            assert answer["usage"]["completion_tokens"] == 8 and answer["usage"]["prompt_tokens"] == len(
                prompts[number]
            )


def test_a_conversation():
    model, messages = make(), [{"role": "user", "content": "hi"}]
    options = {"max_new_tokens": 30, "do_sample": True, "temperature": 1.5, "seed": 3, "eos_id": 26}
    (ids,) = generate(model, [Marks().encode(messages)], **options)
    with serving(model, Marks()) as (_, port):
        body = {"messages": messages, "max_completion_tokens": 30, "temperature": 1.5, "seed": 3}
        _, text = ask(port, "/v1/chat/completions", body)
        answer = json.loads(text)
        assert answer["object"] == "chat.completion"
        written = Letters().decode(ids)
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": written}
        stop = written[4:6]
        _, text = ask(port, "/v1/chat/completions", body | {"stop": [stop], "stream": True})
        events = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]
        choices = [event["choices"][0] for event in events]
        assert "".join(choice["delta"]["content"] for choice in choices) == written[: written.index(stop)]
        assert choices[-1]["finish_reason"] == "stop" and events[0]["object"] == "chat.completion.chunk"
        assert json.loads(ask(port, "/v1/models")[1])["data"][0]["id"] == "tiny"


BAD = [
    (b"{", 400, "the body is not JSON"),
    (b"[" * 100_000, 400, "the body is not JSON"),
    (b"7", 400, "must be a JSON object, got 7"),
    (b" " * (1 << 20) + b"{}", 413, "more than 1048576 bytes"),
    ({}, 400, "prompt must be one text"),
    ({"prompt": ["a", "b"]}, 400, "prompt must be one text"),
    ({"prompt": [1, 99]}, 400, "beyond vocab_size=27"),
    ({"prompt": ""}, 400, "the prompt is empty"),
    ({"prompt": "a", "temprature": 1}, 400, "no option 'temprature'; did you mean 'temperature'"),
    ({"prompt": "a", "temperature": "hot"}, 400, "temperature='hot' must be a number"),
    ({"prompt": "a", "max_tokens": True}, 400, "max_tokens=True must be a whole number"),
    ({"prompt": "a", "temperature": -1}, 400, "temperature=-1 must be above 0"),
    ({"prompt": "a", "seed": 2**63}, 400, "must be from 0 to 2**63 - 1"),
    ({"prompt": "a", "top_p": 1e999}, 400, "top_p=inf must be a number"),
    ({"prompt": "a", "max_tokens": 0}, 400, "max_new_tokens=0 must be at least 1"),
    ({"prompt": "a", "frequency_penalty": 1e308}, 500, "the model failed while it wrote this text"),
    ({"prompt": "a", "max_tokens": 41}, 400, "more than this server writes, 40"),
    ({"prompt": "a" * 60, "max_tokens": 10}, 400, "the context of 64 is too short"),
    ({"prompt": "a", "stream": "yes"}, 400, "stream='yes' must be true or false"),
    ({"prompt": "a", "stop": [3]}, 400, "stop=[3] must be one or more texts"),
    ({"prompt": "a", "model": "gpt"}, 400, "there is no model 'gpt' here, only 'tiny'"),
    (b'{"prompt": "a", "presence_penalty": NaN}', 400, "presence_penalty=nan must be a number"),
]


def test_bad_calls_get_one_sentence_and_harm_no_other():
    with serving(max_waiting=3) as (_, port):
        for body, status, said in BAD:
            got, text = ask(port, "/v1/completions", body)
            assert (got, said in json.loads(text)["error"]["message"]) == (status, True), text
        for messages in ([], [7], [{"role": "user"}], [{"role": "wizard", "content": "x"}]):
            _, text = ask(port, "/v1/chat/completions", {"messages": messages})
            assert "no chat template" in json.loads(text)["error"]["message"]
        assert ask(port, "/v1/nothing")[0] == 404 and ask(port, "/v1/completions")[0] == 405
        assert ask(port, "/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200
    with serving(template=Marks()) as (_, port):
        for messages in ([], [7], [{"role": "user"}], [{"role": "wizard", "content": "x"}]):
            _, text = ask(port, "/v1/chat/completions", {"messages": messages})
            assert "messages must be a list of" in json.loads(text)["error"]["message"]


def leave(port, stream):
    """Ask for a long text and hang up: after the first piece, or while nothing has been sent."""
    client = socket.create_connection(("127.0.0.1", port))
    body = json.dumps({"prompt": "abc", "max_tokens": 40, "stream": stream}).encode()
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    if stream:
        client.recv(1)
    client.close()


def test_a_client_that_vanishes_frees_its_blocks_and_a_full_queue_says_so():
    model = make()
    embed, gate = model.embed, threading.Event()
    model.embed = lambda *args, **options: (gate.wait(), time.sleep(0.02), embed(*args, **options))[-1]
    with serving(model, max_running=1, max_waiting=1) as (server, port):
        engine = server.engine
        first = threading.Thread(target=leave, args=(port, True))
        first.start()
        wait_for(lambda: engine.running)
        leave(port, False)
        wait_for(lambda: engine.waiting)
        status, text = ask(port, "/v1/completions", {"prompt": "a"})
        assert status == 429 and "1 requests are waiting already" in text
        gate.set()
        first.join()
        wait_for(lambda: not engine.busy)
        assert set(engine.pool.references) == {0} and engine.tokens_written < 40
        assert ask(port, "/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200


def test_a_step_that_fails_ends_its_texts_only(capfd):
    model = make()
    embed, fails = model.embed, [True]

    def failing(*args, **options):
        if fails:
            fails.clear()
            raise RuntimeError("out of memory")
        return embed(*args, **options)

    model.embed = failing
    with serving(model) as (server, port):
        status, text = ask(port, "/v1/completions", {"prompt": "a", "max_tokens": 2})
        assert status == 500 and "the model failed" in json.loads(text)["error"]["message"]
        assert ask(port, "/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200
        assert set(server.engine.pool.references) == {0}
    assert "a step failed: out of memory" in capfd.readouterr().out


def test_who_has_begun_is_answered_when_the_server_stops():
    model = make()
    embed, began = model.embed, threading.Event()
    model.embed = lambda *args, **options: (began.set(), time.sleep(0.01), embed(*args, **options))[-1]
    answer = []
    with serving(model) as (_, port):
        body = {"prompt": "abc", "max_tokens": 40}
        client = threading.Thread(target=lambda: answer.append(ask(port, "/v1/completions", body)))
        client.start()
        began.wait()
    client.join()
    assert answer[0][0] == 200 and json.loads(answer[0][1])["usage"]["completion_tokens"] == 40


def test_the_page_draws_what_stats_tell():
    with serving() as (server, port):
        status, page = ask(port, "/")
        assert status == 200 and "<h2>Blocks" in page
        server.engine.submit([1] * 20, max_new_tokens=5)
        server.engine.step()
        stats = json.loads(ask(port, "/stats")[1])
        assert stats["references"].count(1) == 2 and [text["length"] for text in stats["texts"]] == [21]
        assert stats["waste"] == pytest.approx(12 / 32) and stats["waste_if_reserved"] == pytest.approx(5 / 25)
        asked = set(re.findall(r"\bs\.(\w+)", page)) | set(re.findall(r"\bt\.(\w+)", page))
        assert asked - {"now"} <= stats.keys() | stats["texts"][0].keys()


def test_a_port_in_use():
    with (
        serving() as (server, port),
        pytest.raises(OSError, match=f"can't listen on 127.0.0.1:{port}: .*in use.*--port"),
    ):
        serve_forever(server, "127.0.0.1", port)
