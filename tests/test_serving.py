"""The server with OpenAI's own client: texts, streams, batches, errors, and clients that leave."""

import asyncio
import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("starlette")
openai = pytest.importorskip("openai")
import httpx  # noqa: E402
from chat_fixtures import write_instruct  # noqa: E402
from serving_helpers import LENGTH, SHORT, SYSTEMS, make_client, serve_models, write_model  # noqa: E402

import logosphere as ls  # noqa: E402
from logosphere.runs.sample import sample_run  # noqa: E402
from logosphere.runs.settings import SampleConfig  # noqa: E402
from logosphere.serving.limits import MAX_BYTES, MAX_CHOICES, ServeLimits  # noqa: E402
from logosphere.serving.server import serve  # noqa: E402

PROMPT = "the cat "
QUICK = {"extra_body": {"steps": 4}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("serving")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with serve_models(folder) as address:
        yield address


@pytest.fixture
def client(address: str) -> "openai.OpenAI":
    return make_client(address)


def fetch(address: str, path: str, **content: object) -> httpx.Response:
    url = f"{address.removesuffix('/v1')}{path}"
    return httpx.post(url, json=content, timeout=60, trust_env=False) if content else httpx.get(url, trust_env=False)


# ---- texts -----------------------------------------------------------------------------------------------------------


def test_models_are_listed(client: "openai.OpenAI") -> None:
    assert [model.id for model in client.models.list()] == [*SYSTEMS, "ending"]
    assert client.models.retrieve("masked").owned_by == "logosphere"


@pytest.mark.parametrize("name", list(SYSTEMS))
def test_a_text_is_that_of_the_command_line(client: "openai.OpenAI", folder: Path, name: str) -> None:
    answer = client.completions.create(model=name, prompt=PROMPT, seed=5, n=2, temperature=1, extra_body={"steps": 6})
    samples = sample_run(
        folder / name, SampleConfig(n=2, steps=6, prompt=PROMPT, seed=5, temperature=1.0, precision="float32")
    )
    assert [PROMPT + choice.text for choice in answer.choices] == samples.texts
    assert [choice.finish_reason for choice in answer.choices] == ["length", "length"]
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(PROMPT), 2 * (LENGTH - len(PROMPT)))
    assert usage.nfe == 2 * samples.nfe and answer.seed == 5


@pytest.mark.parametrize("name", list(SYSTEMS))
def test_streams_add_up_to_the_whole_text(client: "openai.OpenAI", name: str) -> None:
    asked = {"model": name, "prompt": PROMPT, "seed": 2, "n": 3, "extra_body": {"steps": 6}}
    whole = client.completions.create(**asked)
    texts, reasons, usages, parts = [""] * 3, [None] * 3, [], [0] * 3
    for chunk in client.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        usages += [chunk.usage] if chunk.usage is not None else []
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            parts[choice.index] += bool(choice.text)
            reasons[choice.index] = choice.finish_reason
    assert texts == [choice.text for choice in whole.choices] and reasons == ["length"] * 3
    assert len(usages) == 1 and usages[0].completion_tokens == whole.usage.completion_tokens
    if name == "causal":
        assert parts == [LENGTH - len(PROMPT)] * 3, "left-to-right models send every token"
    elif name == "masked":
        assert max(parts) > 1, "positions are sent when everything before them is final"


def test_async_clients_share_batches(address: str) -> None:
    """The same seed gives the same text, whether it is sampled alone or together with others."""

    async def run() -> tuple[list[str], list[str]]:
        async with openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0) as client:

            async def ask(seed: int) -> str:
                answer = await client.completions.create(
                    model="masked", prompt=PROMPT[: 1 + seed % 5], seed=seed, extra_body={"steps": 8}
                )
                return answer.choices[0].text

            alone = [await ask(seed) for seed in range(8)]
            return alone, await asyncio.gather(*(ask(seed) for seed in range(8)))

    before = read_metrics(address)
    alone, together = asyncio.run(run())
    after = read_metrics(address)
    assert alone == together and len(set(alone)) > 5
    key = 'logosphere_batches_total{model="masked"}'
    assert after[key] - before.get(key, 0) < 8 + 8, "eight alone, and the others in fewer batches"


def test_a_gap_is_filled_between_a_prompt_and_a_suffix(client: "openai.OpenAI", folder: Path) -> None:
    asked = {"model": "masked", "prompt": "the ", "suffix": " sat", "max_tokens": 5, "seed": 1, "temperature": 1}
    answer = client.completions.create(**asked, extra_body={"steps": 8})
    filled = sample_run(
        folder / "masked",
        SampleConfig(n=1, steps=8, infill="the [5] sat", seed=1, temperature=1.0, precision="float32"),
    )
    assert len(answer.choices[0].text) == 5 and answer.choices[0].finish_reason == "stop"
    assert filled.texts[0].startswith(f"the {answer.choices[0].text} sat")
    whole = client.completions.create(
        model="masked", prompt=None, seed=1, temperature=1, extra_body={"steps": 8, "infill": "the [5] sat[..]"}
    )
    assert whole.choices[0].text == filled.texts[0][: 4 + 5 + 4 + 2]
    assert (whole.usage.completion_tokens, whole.usage.prompt_tokens) == (7, 8)
    assert len(client.completions.create(model="masked", prompt="a", suffix="b", **QUICK).choices[0].text) == 16
    ended = client.completions.create(model="ending", prompt="the ", suffix=" sat", max_tokens=5, n=8, seed=3, **QUICK)
    assert [len(choice.text) for choice in ended.choices] == [5] * 8, "a text does not end before its suffix"


def test_texts_end_at_stop_sequences_and_end_tokens(client: "openai.OpenAI", folder: Path) -> None:
    asked = {"model": "causal", "prompt": PROMPT, "seed": 4}
    whole = client.completions.create(**asked).choices[0].text
    stop = whole[6:8]
    cut = client.completions.create(**asked, stop=[stop, "zzzz"])
    assert cut.choices[0].text == whole[: whole.index(stop)] and cut.choices[0].finish_reason == "stop"
    assert cut.usage.nfe < LENGTH - len(PROMPT), "nothing is sampled after the end"
    streamed = [chunk.choices[0].text for chunk in client.completions.create(**asked, stop=stop, stream=True)]
    assert "".join(streamed) == cut.choices[0].text
    short = client.completions.create(**asked, max_tokens=3, echo=True)
    assert short.choices[0].text == PROMPT + whole[:3] and short.usage.nfe == 3
    ended = client.completions.create(model="ending", prompt="the", n=8, seed=0, **QUICK)
    assert {choice.finish_reason for choice in ended.choices} == {"stop", "length"}


def test_temperature_top_p_and_biases_act(client: "openai.OpenAI") -> None:
    asked = {"model": "masked", "prompt": PROMPT, "n": 4, "seed": 7, **QUICK}
    letter = 5  # e
    certain = client.completions.create(**asked, logit_bias={str(letter): 100})
    assert {choice.text for choice in certain.choices} == {"e" * (LENGTH - len(PROMPT))}
    banned = client.completions.create(**asked, logit_bias={str(letter): -100})
    assert not any("e" in choice.text for choice in banned.choices)
    mixed = client.completions.create(**asked, top_p=0.01, temperature=0.5)
    assert mixed.choices[0].text
    greedy = [client.completions.create(model="causal", prompt=PROMPT, seed=seed, temperature=0) for seed in (1, 2)]
    assert greedy[0].choices[0].text == greedy[1].choices[0].text


def test_drafts_show_the_whole_text(address: str) -> None:
    asked = {"model": "masked", "prompt": PROMPT, "seed": 2, "stream": True, "draft": True, "steps": 6}
    lines = fetch(address, "/v1/completions", **asked).text.strip().split("\n\n")
    drafts = [json.loads(line.split("data: ")[1])["draft"] for line in lines if line.startswith("event: draft")]
    assert lines[-1] == "data: [DONE]" and 1 < len(drafts) <= 6
    assert all(len(draft["text"]) == LENGTH - len(PROMPT) for draft in drafts)
    assert [draft["step"] for draft in drafts] == sorted(draft["step"] for draft in drafts)
    client = make_client(address)
    del asked["stream"], asked["draft"], asked["steps"]
    stream = client.completions.create(**asked, stream=True, extra_body={"draft": True, "steps": 6})
    assert "".join(choice.text for chunk in stream for choice in chunk.choices)


def test_several_prompts_and_token_numbers(client: "openai.OpenAI") -> None:
    both = client.completions.create(model="masked", prompt=["the", "cat"], n=2, seed=3, **QUICK)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    single = client.completions.create(model="masked", prompt="cat", n=2, seed=3, **QUICK)
    assert [choice.text for choice in both.choices[2:]] == [choice.text for choice in single.choices]
    ids = [ord(letter) - 96 for letter in "cat"]
    assert (
        client.completions.create(model="masked", prompt=ids, n=2, seed=3, **QUICK).choices[1].text
        == single.choices[1].text
    )


def test_chats_follow_the_template_of_the_checkpoint(tmp_path: Path) -> None:
    ls.import_model(write_instruct(tmp_path / "source")).save(tmp_path / "instruct")
    messages = [{"role": "system", "content": "a mat"}, {"role": "user", "content": "the cat"}]
    with serve([tmp_path / "instruct"], connections=SHORT) as address:
        client = make_client(address)
        asked = {"model": "instruct", "messages": messages, "seed": 1, "max_completion_tokens": 12}
        more = {"steps": 8, "block_length": 4}
        answer = client.chat.completions.create(**asked, extra_body=more)
        stream = client.chat.completions.create(**asked, extra_body=more, stream=True)
        deltas = [choice.delta for chunk in stream for choice in chunk.choices]
        assert deltas[0].role == "assistant"
        assert "".join(delta.content or "" for delta in deltas) == answer.choices[0].message.content
        assert 0 < answer.usage.completion_tokens <= 12 and answer.usage.prompt_tokens > 20
        parts = [{"role": "user", "content": [{"type": "text", "text": "the "}, {"type": "text", "text": "cat"}]}]
        joined = client.chat.completions.create(model="instruct", messages=parts, seed=1, max_tokens=4, **QUICK)
        assert joined.object == "chat.completion"
        plain = client.completions.create(model="instruct", prompt="the cat ", max_tokens=8, extra_body={"steps": 4})
        assert plain.usage.completion_tokens <= 8 and plain.usage.nfe <= 4
        with pytest.raises(openai.BadRequestError, match="content"):
            client.chat.completions.create(model="instruct", messages=[{"role": "user", "content": 5}])


# ---- errors ----------------------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, object], str, str]] = [
    ({"n": 0}, "n", "from 1 to"),
    ({"n": MAX_CHOICES + 1}, "n", "from 1 to"),
    ({"n": 1.5}, "n", "whole number"),
    ({"n": True}, "n", "whole number"),
    ({"prompt": ["a"] * MAX_CHOICES, "n": 2}, "n", "16 prompts × 2"),
    ({"prompt": "a" * 40}, "prompt", "have 24 tokens"),
    ({"max_tokens": 25}, "max_tokens", "have 24 tokens"),
    ({"max_tokens": 0}, "max_tokens", "from 1 to"),
    ({"max_tokens": 10**30}, "max_tokens", "from 1 to"),
    ({"prompt": "A"}, "prompt", "not in the alphabet"),
    ({"prompt": [27]}, "prompt", "from 0 to 26"),
    ({"prompt": [-1]}, "prompt", "from 0 to 26"),
    ({"prompt": {}}, "prompt", "a text"),
    ({"prompt": "\ud800"}, "prompt", "surrogate"),
    ({"temperature": 2.1}, "temperature", "from 0 to 2"),
    ({"temperature": "hot"}, "temperature", "a number"),
    ({"temperature": True}, "temperature", "a number"),
    ({"top_p": 0}, "top_p", "above 0"),
    ({"seed": -1}, "seed", "from 0 to 9223372036854775807"),
    ({"seed": 2**63}, "seed", "from 0 to 9223372036854775807"),
    ({"stop": ["a"] * 5}, "stop", "at most 4"),
    ({"stop": ""}, "stop", "empty"),
    ({"stop": [1]}, "stop", "a text"),
    ({"logit_bias": {"27": 1}}, "logit_bias", "token 27"),
    ({"logit_bias": {"e": 1}}, "logit_bias", "token numbers"),
    ({"logit_bias": {"5": 101}}, "logit_bias of token 5", "-100 to 100"),
    ({"steps": 1025}, "steps", "from 1 to 1024"),
    ({"sampler": "fastest"}, "sampler", "fastest"),
    ({"sampler": "bridge"}, None, "needs a sphere|needs"),
    ({"block_length": 50}, None, "block"),
    ({"best_of": 2}, "best_of", "best_of must equal n"),
    ({"presence_penalty": 1}, "presence_penalty", "not supported"),
    ({"logprobs": 3}, "logprobs", "not supported"),
    ({"response_format": {"type": "json_object"}}, "response_format", "use json_schema"),
    ({"draft": True}, "draft", "needs stream"),
    ({"infill": "no gap"}, "infill", "no gap|no position"),
    ({"infill": "a[..]", "suffix": "b"}, "infill", "leave out"),
    ({"colour": "red"}, "colour", "Unrecognized"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_requests_get_errors_of_openai(
    address: str, fields: dict[str, object], param: str | None, words: str
) -> None:
    answer = httpx.post(
        f"{address}/completions", content=json.dumps({"model": "masked"} | fields), timeout=60, trust_env=False,
        headers={"content-type": "application/json"},
    )  # fmt: skip
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["type"] == "invalid_request_error", answer.text
    assert set(error) == {"message", "type", "param", "code"} and error["param"] == param
    assert re.search(words, error["message"]) and "\n" not in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b"[" * 100_000, b'{"a":' * 50_000, b"\xff",
        b'{"model": "masked", "temperature": NaN}', b'{"model": "masked", "temperature": Infinity}',
        b'{"model": "masked", "temperature": 1e999}', b'{"model": "masked", "n": ' + b"9" * 5000 + b"}",
        b'{"model": "masked", "prompt": ' + b"[" * 900 + b"]" * 900 + b"}",
    ],
    ids=range(12),
)  # fmt: skip
def test_what_is_no_json_object_is_refused(address: str, body: bytes) -> None:
    for path in ("completions", "chat/completions"):
        headers = {"content-type": "application/json"}
        answer = httpx.post(f"{address}/{path}", content=body, headers=headers, timeout=60, trust_env=False)
        assert answer.status_code == 400 and answer.json()["error"]["message"]


def test_other_refusals(address: str, client: "openai.OpenAI") -> None:
    with pytest.raises(openai.NotFoundError, match="served are: masked") as missing:
        client.completions.create(model="gpt-4", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")
    with pytest.raises(openai.BadRequestError, match="left to right"):
        client.completions.create(model="causal", prompt="a", suffix="b")
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        client.chat.completions.create(model="masked", messages=[{"role": "user", "content": "Hi"}])
    plain = httpx.post(f"{address}/completions", content=b"{}", headers={"content-type": "text/plain"}, trust_env=False)
    assert plain.status_code == 415
    large = httpx.post(f"{address}/completions", json={"prompt": "a" * MAX_BYTES}, trust_env=False)
    assert large.status_code == 413
    assert fetch(address, "/nothing").status_code == 404 and "error" in fetch(address, "/nothing").json()
    wrong = httpx.get(f"{address}/completions", trust_env=False)
    assert wrong.status_code == 405 and "POST" in wrong.headers["allow"] and "error" in wrong.json()


# ---- access ----------------------------------------------------------------------------------------------------------


def test_other_pages_and_hosts_are_refused(address: str) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
        answer = httpx.get(f"{address}/models", headers=headers, trust_env=False)
        assert answer.status_code == 403 and answer.json()["error"]["type"] == "permission_error"
        assert "access-control-allow-origin" not in answer.headers
    preflight = httpx.options(f"{address}/completions", headers={"Origin": address[:-3]}, trust_env=False)
    assert preflight.status_code == 405 and "access-control-allow-origin" not in preflight.headers


def test_a_key_is_required_where_one_is_set(tmp_path: Path) -> None:
    with serve([write_model(tmp_path / "m", "mdlm")], key="secret", connections=SHORT) as address:
        for given in ("", "wrong", "secre", "secrett"):
            with pytest.raises(openai.AuthenticationError, match="missing or wrong"):
                make_client(address, given or "none").models.list()
        assert make_client(address, "secret").completions.create(model="m", prompt="a").choices[0].text
        assert fetch(address, "/health").json()["status"] == "ok"
        assert fetch(address, "/metrics").status_code == fetch(address, "/openapi.json").status_code == 401


# ---- the queue -------------------------------------------------------------------------------------------------------


def read_metrics(address: str) -> dict[str, float]:
    lines = fetch(address, "/metrics").text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def wait_until_idle(address: str, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while (state := fetch(address, "/health").json())["running"] or state["waiting"]:
        assert time.monotonic() < end, state
        time.sleep(0.05)


SLOW = {"model": "m", "steps": 1024, "seed": 0}


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose requests of 1,024 steps take seconds, with a queue of three places."""
    place = write_model(tmp_path_factory.mktemp("slow") / "m", "mdlm", length=512)
    with serve([place], limits=ServeLimits(queue=3, batch=2, shutdown_seconds=0.2), connections=SHORT) as address:
        yield address


def test_a_full_queue_answers_429_with_a_time(slow: str) -> None:
    def ask(number: int) -> httpx.Response:
        time.sleep(0.1 * number)
        try:
            return httpx.post(f"{slow}/completions", json=SLOW | {"seed": number}, timeout=3, trust_env=False)
        except httpx.ReadTimeout:
            return httpx.Response(0)

    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(ask, range(12)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused and refused[0].json()["error"]["code"] == "queue_full"
    assert 1 <= int(refused[0].headers["retry-after"]) <= 60
    wait_until_idle(slow)
    assert read_metrics(slow)["logosphere_rejected_total"] == len(refused)
    too_many = httpx.post(f"{slow}/completions", json=SLOW | {"n": 4}, trust_env=False)
    assert too_many.status_code == 400 and "3 places" in too_many.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_work_stops_when_the_client_leaves(slow: str, stream: bool) -> None:
    host, port = slow.removeprefix("http://").removesuffix("/v1").split(":")
    body = json.dumps(SLOW | {"stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port)), 20) as client:
        client.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        end = time.monotonic() + 20
        while not fetch(slow, "/health").json()["running"]:
            assert time.monotonic() < end
            time.sleep(0.02)
    wait_until_idle(slow, 10)
    quick = httpx.post(f"{slow}/completions", json=SLOW | {"steps": 2}, timeout=60, trust_env=False)
    assert quick.status_code == 200


def test_requests_have_a_time_limit(tmp_path: Path) -> None:
    place = write_model(tmp_path / "m", "mdlm", length=512)
    with serve([place], limits=ServeLimits(request_seconds=0.3), connections=SHORT) as address:
        answer = httpx.post(f"{address}/completions", json=SLOW, timeout=60, trust_env=False)
        assert answer.status_code == 504 and answer.json()["error"]["code"] == "timeout"
        streamed = httpx.post(f"{address}/completions", json=SLOW | {"stream": True}, timeout=60, trust_env=False)
        assert '"code":"timeout"' in streamed.text


def test_figures_are_in_the_format_of_prometheus(address: str, client: "openai.OpenAI") -> None:
    client.completions.create(model="masked", prompt=PROMPT, seed=1, **QUICK)
    response = fetch(address, "/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    described = {line.split()[2] for line in response.text.splitlines() if line.startswith("# TYPE")}
    values = read_metrics(address)
    for name in values:
        plain = name.split("{")[0]
        assert any(plain in (one, f"{one}_bucket", f"{one}_sum", f"{one}_count") for one in described), name
    assert values['logosphere_requests_total{route="/v1/completions",status="200"}'] >= 1
    assert values["logosphere_request_seconds_count"] >= values['logosphere_request_seconds_bucket{le="0.05"}']
    assert values['logosphere_generated_tokens_total{model="masked"}'] >= LENGTH - len(PROMPT)
