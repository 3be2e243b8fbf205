"""The studio over HTTP: generation, held tokens, access control, and jobs that stop without viewers."""

import asyncio
import contextlib
import io
import json
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
from starlette.testclient import TestClient

import logosphere as ls
from logosphere.cli import main
from logosphere.pretrained import DISPLAY_ORDER, PREFIX, list_pretrained, sampling_defaults
from logosphere.runs.run import Run
from logosphere.studio.app import create_app, load_static_files
from logosphere.studio.jobs import KEPT_JOBS, MAX_VIEWERS, Job, JobPool, LimitReached, make_generate_job
from logosphere.studio.library import Library
from logosphere.studio.models import StudioModel, downsample
from logosphere.studio.requests import GenerateRequest, resolve_holds

TOKEN, HOST = "secret", "127.0.0.1:8000"
SMALL = ["--length", "16", "--batch", "4", "--network.width", "16", "--network.depth", "1", "--network.heads", "2"]
SMALL += ["--validation-sequences", "8", "--validations", "2", "--steps", "4"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    folder = tmp_path_factory.mktemp("studio")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LOGOSPHERE_CACHE", str(folder / "cache"))
        for system in ("mdlm", "rdlm", "ar"):
            assert main(["train", "--system", system, "--out", str(folder / "runs" / system), *SMALL]) == 0
        yield Library([str(folder / "runs" / system) for system in ("mdlm", "rdlm", "ar")])


@pytest.fixture(scope="module")
def models(library: Library) -> list[StudioModel]:
    return library.models


@pytest.fixture
def client(library: Library) -> Iterator[TestClient]:
    with TestClient(create_app(library, TOKEN, 8000), base_url=f"http://{HOST}") as client:
        yield client


def events(client: TestClient, **content: Any) -> list[tuple[str, Any]]:
    response = client.post(f"/{TOKEN}/generate", json=content)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return read(response.text)


def read(stream: str) -> list[tuple[str, Any]]:
    parts = [part.split("\n") for part in stream.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in parts]


def test_the_page_and_its_parts_are_served_with_a_strict_policy(client: TestClient) -> None:
    page = client.get(f"/{TOKEN}/")
    assert page.status_code == 200 and "Logosphere studio" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for name in load_static_files():
        assert client.get(f"/{TOKEN}/static/{name}").status_code == 200
    assert sum(len(content) for content, _ in load_static_files().values()) < 300_000
    for name, (content, _) in load_static_files().items():
        assert b"https:" not in content and content.count(b"http:") == (name == "pictures.js")  # the namespace of SVG


def test_models_and_curves_are_listed(client: TestClient) -> None:
    listed = client.get(f"/{TOKEN}/systems").json()
    assert [one["system"] for one in listed["systems"]] == ["mdlm", "rdlm", "ar"]
    first = listed["systems"][0]
    assert first["length"] == 16 and first["trained"] and first["saved"] and first["temperature"] == 1
    assert [one["number"] for one in listed["systems"]] == [0, 1, 2] and listed["unreadable"] == []
    curves = client.get(f"/{TOKEN}/curves/0").json()
    assert [step for step, _ in curves["train"]] == [1, 2, 3, 4] and len(curves["val"]) == 2
    assert all(error > 0 for _, _, error in curves["val"])
    assert client.get(f"/{TOKEN}/curves/7").status_code == 404
    assert downsample([[float(i), 2.0 * i] for i in range(6)], 3) == [[0.5, 1.0], [2.5, 5.0], [4.5, 9.0]]
    assert downsample([[1.0, 2.0]], 3) == [[1.0, 2.0]] and len(downsample([[float(i)] for i in range(1000)], 7)) == 7


def test_only_supported_samplers_are_offered(client: TestClient) -> None:
    fits = [client.get(f"/{TOKEN}/ways/{number}").json() for number in range(3)]
    assert all(one["own"] in one["fit"] and "ancestral" in one["fit"] for one in fits)
    assert "star" in fits[0]["fit"] and "bridge" not in fits[0]["fit"]
    assert "bridge" in fits[1]["fit"] and "star" not in fits[1]["fit"]
    assert client.get(f"/{TOKEN}/ways/7").status_code == 404


def test_bundled_checkpoints_are_listed_in_order_with_figure_and_temperature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    listed = Library().describe()
    assert [one["name"] for one in listed] == [f"{PREFIX}{name}" for name in list_pretrained()]
    assert listed[0]["name"] == f"{PREFIX}{DISPLAY_ORDER[0]}"
    for one in listed:
        temperature = sampling_defaults(one["name"].removeprefix(PREFIX)).temperature
        assert one["temperature"] == temperature and one["figure"]["error"] > 0
        assert one["unit"] == Run(one["name"]).tokenizer.unit and not one["trained"]


def test_a_bundled_checkpoint_uses_its_default_sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    library = Library([f"{PREFIX}stories"])
    models = library.models
    assert models[0].list_samplers()["own"] == sampling_defaults("stories").sampler != models[0].model.sampler
    with TestClient(create_app(library, TOKEN, 8000), base_url=f"http://{HOST}") as client:
        (_, first), *_ = auto = events(client, system=0, steps=4)
        named = events(client, system=0, steps=4, sampler=sampling_defaults("stories").sampler)
    assert "--sampler entropy" in first["command"] and "sampler('entropy', model)" in first["python"]
    assert auto[-1][1]["texts"] == named[-1][1]["texts"]


@pytest.mark.parametrize("system", [0, 1, 2])
def test_a_text_is_streamed_frame_by_frame(client: TestClient, system: int, models: list[StudioModel]) -> None:
    streamed = events(client, system=system, n=2, steps=5, seed=3)
    names = [name for name, _ in streamed]
    moments = [content for name, content in streamed if name == "moment"]
    assert names == ["begun", *["moment"] * len(moments), "done"]
    symbols = {int(token): symbol for moment in moments for token, symbol in moment["symbols"].items()}
    last = ["".join(symbols[token] for token in row) for row in moments[-1]["tokens"]]
    assert last == ["".join(models[system].tokenizer.symbol(t) for t in row) for row in moments[-1]["tokens"]]
    assert streamed[-1][1]["texts"] == [models[system].tokenizer.decode(row) for row in moments[-1]["tokens"]]
    assert (moments[0]["projected_xy"] is not None) == (system == 1)
    assert streamed[-1][1]["texts"] == events(client, system=system, n=2, steps=5, seed=3)[-1][1]["texts"]


def test_held_tokens_stay_and_the_rest_is_generated(client: TestClient) -> None:
    holds = [{"at": 2, "token": 5}, {"at": 7, "text": "cat"}]
    for system in (0, 1):
        streamed = events(client, system=system, n=3, steps=4, holds=holds, prompt="a")
        assert streamed[0][1]["known"] == [0, 2, 7, 8, 9]
        for row, text in zip(streamed[-2][1]["tokens"], streamed[-1][1]["texts"], strict=True):
            assert row[2] == 5 and text[7:10] == "cat" and text[0] == "a"
            assert len(text) == 16


@pytest.mark.parametrize("content", [{}, {"prompt": "a cat "}, {"holds": [{"at": 3, "text": "of"}], "sampler": "star"}])
def test_a_request_can_be_copied_as_command_and_python(client: TestClient, content: dict[str, Any]) -> None:
    """The command and the Python code generate the same texts."""
    streamed = events(client, system=0, n=2, steps=4, seed=1, top_p=0.9, **content)
    argv = shlex.split(streamed[0][1]["command"])
    for copied in ("command", "python"):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            main([*argv[1:], "--json"]) if copied == "command" else exec(streamed[0][1]["python"], {})
        printed = out.getvalue()
        texts = [one["text"] for one in json.loads(printed)["samples"]] if copied == "command" else printed.splitlines()
        assert texts == streamed[-1][1]["texts"]


@pytest.mark.parametrize(
    "content, message",
    [
        ({"system": 3}, "system"),
        ({"system": "../../etc"}, "system"),
        ({"system": True}, "system"),
        ({"system": 0, "steps": 1025}, "steps"),
        ({"system": 0, "steps": 0}, "steps"),
        ({"system": 0, "n": 9}, "n must"),
        ({"system": 0, "temperature": float("1e9")}, "temperature"),
        ({"system": 0, "top_p": 0}, "top_p"),
        ({"system": 0, "seed": -1}, "seed"),
        ({"system": 0, "prompt": "a" * 5000}, "prompt"),
        ({"system": 0, "sampler": "starr"}, "Did you mean 'star'"),
        ({"system": 0, "path": "/etc/passwd"}, "fields"),
        ({"system": 0, "holds": [{"at": 1}]}, "hold"),
        ({"system": 0, "holds": [{"at": -1, "token": 1}]}, "at must"),
        ([1], "object"),
    ],
)
def test_requests_beyond_the_limits_are_refused(client: TestClient, content: Any, message: str) -> None:
    response = client.post(f"/{TOKEN}/generate", json=content)
    assert response.status_code == 400 and message in response.json()["sentence"]


@pytest.mark.parametrize(
    "content, message",
    [
        ({"holds": [{"at": 15, "text": "cat"}]}, "beyond"),
        ({"holds": [{"at": 1, "token": 99}]}, "from 0 to"),
        ({"holds": [{"at": 0, "text": "a" * 16}]}, "nothing to generate"),
        ({"prompt": "a" * 17}, "shorten"),
        ({"sampler": "ddim"}, "Gaussian"),
    ],
)
def test_errors_of_a_model_are_reported_in_the_stream(client: TestClient, content: Any, message: str) -> None:
    (name, response), *_ = events(client, system=0, steps=2, **content)[-1:]
    assert name == "failed" and message in response["sentence"]


def test_the_size_of_a_job_is_limited(models: list[StudioModel], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logosphere.studio.requests.MAX_TOKEN_STEPS", 100)
    with pytest.raises(ls.UserError, match="fewer texts or steps"):
        resolve_holds(GenerateRequest(system=0, steps=7), models[0].model, models[0].tokenizer)
    assert resolve_holds(GenerateRequest(system=0, steps=6), models[0].model, models[0].tokenizer) is None


@pytest.mark.parametrize(
    "path, headers",
    [
        ("/wrong/systems", {}),
        ("/systems", {}),
        ("/", {}),
        (f"/{TOKEN}/systems", {"host": "evil.example:8000"}),
        (f"/{TOKEN}/systems", {"host": "127.0.0.1:9999"}),
        (f"/{TOKEN}/systems", {"origin": "http://evil.example"}),
        (f"/{TOKEN}/systems", {"origin": "null"}),
        (f"/{TOKEN}/systems", {"origin": "http://127.0.0.1:9999"}),
    ],
)
def test_requests_without_token_or_from_other_origins_are_refused(
    client: TestClient, path: str, headers: dict[str, str]
) -> None:
    response = client.get(path, headers=headers)
    assert response.status_code == 403 and "systems" not in response.text
    assert client.get(f"/{TOKEN}/systems", headers={"origin": f"http://{HOST}"}).status_code == 200


def test_no_path_reaches_the_file_system(client: TestClient) -> None:
    for name in ("..%2f..%2fapp.py", "%2e%2e/app.py", "../jobs.py", "jobs.py", "%2fetc%2fpasswd"):
        assert client.get(f"/{TOKEN}/static/{name}").status_code in (403, 404)


def test_only_short_json_is_accepted(client: TestClient) -> None:
    for content, kind in ((b"{}", "text/plain"), (b"{", "application/json"), (b" " * (1 << 21), "application/json")):
        response = client.post(f"/{TOKEN}/generate", content=content, headers={"content-type": kind})
        assert response.status_code == 400 and response.json()["sentence"]
    assert client.get(f"/{TOKEN}/generate").status_code == 405


def test_jobs_are_limited_and_stop_without_viewers(models: list[StudioModel]) -> None:
    async def leave_early() -> None:
        pool = JobPool(max_jobs=1)
        job = pool.submit(make_generate_job(models[0], GenerateRequest(system=0, steps=1024)))
        async for event in job.stream():
            if event.name == "moment":
                break
        with pytest.raises(LimitReached, match="jobs are running"):
            pool.submit(make_generate_job(models[0], GenerateRequest(system=0)))
        pool.remove_viewer(job)
        started = time.monotonic()
        await asyncio.to_thread(job.join, 20)
        assert not job.is_alive() and time.monotonic() - started < 10
        await asyncio.sleep(0)
        assert not any(event.name == "done" for event in job.events)
        with pytest.raises(ls.UserError, match="no longer available"):
            pool.add_viewer(job.number)
        again = pool.submit(make_generate_job(models[0], GenerateRequest(system=0, steps=2)))
        assert [event.name async for event in again.stream()][-1] == "done"
        pool.remove_viewer(again)
        assert pool.running == 0

    asyncio.run(leave_early())


def test_fifty_viewers_receive_every_frame_of_one_text(models: list[StudioModel]) -> None:
    """Some viewers start later, some are slow, and one leaves without affecting the others."""

    async def watched() -> None:
        pool = JobPool()
        job = pool.submit(make_generate_job(models[0], GenerateRequest(system=0, steps=40, n=2)))

        async def viewer(number: int) -> list[bytes]:
            await asyncio.sleep(0.002 * number)
            received = []
            async for event in pool.add_viewer(job.number).stream():
                received.append(event.line)
                if number % 10 == 0:
                    await asyncio.sleep(0.001)  # a slow reader
                if number == 7 and event.name == "moment":
                    break
            pool.remove_viewer(job)
            return received

        everything = await asyncio.gather(*(viewer(number) for number in range(50)))
        sent = [event.line for event in job.events]
        assert len(sent) == 42 and all(received == sent for i, received in enumerate(everything) if i != 7)
        assert sent[: len(everything[7])] == everything[7] and len(everything[7]) < 42
        pool.remove_viewer(job)
        assert (
            pool.running == 0 and job.viewers == 0 and pool.add_viewer(job.number) is job
        )  # finished texts can be viewed again
        pool.remove_viewer(job)
        for _ in range(KEPT_JOBS):
            later = pool.submit(lambda job: None)
            await asyncio.to_thread(later.join)
            await asyncio.sleep(0)
            pool.remove_viewer(later)
        with pytest.raises(ls.UserError, match="no longer available"):
            pool.add_viewer(job.number)

    asyncio.run(watched())


def test_the_number_of_viewers_is_limited(models: list[StudioModel]) -> None:
    async def crowded() -> None:
        pool = JobPool()
        job = pool.submit(make_generate_job(models[0], GenerateRequest(system=0, steps=2)))
        job.viewers = MAX_VIEWERS
        with pytest.raises(LimitReached, match="viewers"):
            pool.add_viewer(job.number)

    asyncio.run(crowded())


def test_a_text_can_be_viewed_from_another_page(client: TestClient) -> None:
    streamed = events(client, system=1, steps=3, n=1)
    response = client.get(f"/{TOKEN}/watch/{streamed[0][1]['job']}")
    assert response.status_code == 200 and read(response.text) == streamed and streamed[0][1]["system"] == 1
    assert client.get(f"/{TOKEN}/watch/99").status_code == 400


def test_the_bound_over_time_is_streamed(client: TestClient) -> None:
    streamed = read(client.post(f"/{TOKEN}/time/1").text)
    assert [name for name, _ in streamed] == ["slice"] * 12 + ["done"]
    assert streamed[0][1]["low"] == 0 and streamed[11][1]["high"] == 1
    assert streamed[12][1]["bits"] == pytest.approx(sum(content["bits"] for _, content in streamed[:12]) / 12)
    assert streamed[12][1]["kind"] == "bound" and streamed[12][1]["sequences"] == 32
    assert read(client.post(f"/{TOKEN}/time/2").text)[0][0] == "failed"  # the likelihood of ar is exact
    assert client.post(f"/{TOKEN}/time/9").status_code == 404


def test_reports_are_sandboxed(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = library.models[0].folder.path
    named = [str(folder)]
    offered = Library(named)
    assert offered.reports == []
    for end in ("html", "md", "json"):
        (tmp_path / f"out.{end}").write_text("<!doctype html>a report")
    (tmp_path / "diary.html").write_text("not a report")
    assert "no report" in Library(named, ["diary.html"]).unreadable["diary.html"]  # skipped, and named
    assert [report.name for report in Library(named, ["out.html"]).reports] == ["out.html"]
    with TestClient(create_app(offered, TOKEN, 8000), base_url=f"http://{HOST}") as client:
        listed = client.get(f"/{TOKEN}/systems").json()["reports"]
        assert [one["name"] for one in listed] == ["out.html"]
        assert client.get(f"/{TOKEN}/reports/0").status_code == 404  # a report has a token of its own
        path = listed[0]["path"].removeprefix("..")
        response = client.get(path)
        policy = response.headers["content-security-policy"]
        assert (
            "a report" in response.text
            and "sandbox allow-scripts allow-downloads;" in policy
            and "frame-ancestors 'self'" in policy
        )
        assert "default-src 'none'" in policy and response.headers.get_list("content-security-policy") == [policy]
        assert client.get(path.replace("/reports/0", "/reports/1")).status_code == 403


def test_too_many_jobs_are_refused_with_429(library: Library) -> None:
    with TestClient(create_app(library, TOKEN, 8000, JobPool(max_jobs=0)), base_url=f"http://{HOST}") as client:
        response = client.post(f"/{TOKEN}/generate", json={"system": 0})
        assert response.status_code == 429 and "wait" in response.json()["sentence"]


def test_a_missing_run_and_an_invalid_port_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["studio", "nowhere"]) == 1 and "There is no run" in capsys.readouterr().err
    assert main(["studio", "--port", "70000"]) == 1 and "65535" in capsys.readouterr().err


def test_curves_are_plotted_in_the_terminal(models: list[StudioModel], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", models[0].name, "--height", "4"]) == 0
    shown = capsys.readouterr().out
    assert (
        "bits per character on held-out text" in shown
        and "step 4" in shown
        and any(0x2800 < ord(c) <= 0x28FF for c in shown)
    )
    assert main(["plot", models[0].name, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["train/bpc"]) == 4
    assert main(["plot", models[0].name, "--height", "1"]) == 1 and "height" in capsys.readouterr().err


def test_curves_of_byte_models_are_plotted(
    models: list[StudioModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--tokenizer", "byte", "--out", "run", *SMALL]) == 0
    capsys.readouterr()
    assert main(["plot", "run", "--height", "4"]) == 0 and "bits per byte on held-out text" in capsys.readouterr().out
    model = Library(["run"]).models[0]
    assert len(model.training_curves()["train"]) == 4 and model.describe()["unit"] == "byte"
    assert model.describe()["figure"]["bits"] > 0 and model.describe()["figure"]["unit"] == "byte"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_shell_completes_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out + 'COMP_WORDS=(logosphere stu); COMP_CWORD=1; _logosphere; echo "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["studio"]
    assert main(["completion", "zsh"]) == 0 and "bashcompinit" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    script = capsys.readouterr().out + "complete -C 'logosphere stu'"
    done = subprocess.run(["fish", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\t")[0] == "studio" and not done.stderr


def test_closing_the_page_stops_its_job(library: Library) -> None:
    """Over a real connection the server detects that the client has disconnected and stops the job."""
    import httpx
    import uvicorn

    pool = JobPool()
    submitted: list[Job] = []
    submit = pool.submit
    pool.submit = lambda function: submitted.append(submit(function)) or submitted[-1]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(create_app(library, TOKEN, port, pool), log_level="error", ws="none"))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{port}/{TOKEN}/generate"
        with httpx.Client(trust_env=False, timeout=60) as client:
            with client.stream("POST", address, json={"system": 0, "steps": 1024, "n": 8}) as response:
                assert any("moment" in line for line in response.iter_lines())
        submitted[0].join(20)
        end = time.monotonic() + 20
        while pool.running and time.monotonic() < end:
            time.sleep(0.02)
        assert submitted[0].is_stopping and not submitted[0].is_alive() and pool.running == 0
        server.should_exit = True
        thread.join(20)


class Panic(BaseException):
    """As the library of tokenizers raises it: no Exception."""


@pytest.mark.parametrize("problem", [Panic("panicked"), SystemExit(1), KeyboardInterrupt(), MemoryError()])
def test_a_job_ends_and_frees_its_place_whatever_it_raises(problem: BaseException) -> None:
    def work(job: Job) -> None:
        raise problem

    async def run() -> None:
        pool = JobPool(max_jobs=1)
        for _ in range(2):
            job = pool.submit(work)
            assert [event.name async for event in job.stream()] == ["failed"]
            assert type(problem).__name__ in job.events[0].content["sentence"]
            pool.remove_viewer(job)
        assert pool.running == 0

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_stopped_job_that_fails_ends_too() -> None:
    def work(job: Job) -> None:
        job.stop()
        raise ls.UserError("wrong")

    async def run() -> None:
        pool = JobPool()
        job = pool.submit(work)
        assert [event async for event in job.stream()] == [] and pool.running == 0

    asyncio.run(asyncio.wait_for(run(), 60))


def test_jobs_without_viewers_count_until_they_end(models: list[StudioModel]) -> None:
    released = threading.Event()

    def block(job: Job) -> None:
        released.wait(60)

    async def run() -> None:
        pool = JobPool(max_jobs=2)
        blocked = [pool.submit(block) for _ in range(2)]
        for job in blocked:
            pool.remove_viewer(job)
        assert pool.running == 2
        with pytest.raises(LimitReached, match="2 jobs are running"):
            pool.submit(block)
        released.set()
        for job in blocked:
            await asyncio.to_thread(job.join, 20)
        await asyncio.sleep(0)
        with models[0].lock:  # another job uses the model
            waiting = pool.submit(make_generate_job(models[0], GenerateRequest(system=0)))
            pool.remove_viewer(waiting)
            await asyncio.to_thread(waiting.join, 20)
        await asyncio.sleep(0)
        assert pool.running == 0

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("digits", [9, 10, 4300, 5000])
@pytest.mark.parametrize("route", ["curves", "ways", "watch"])
def test_numbers_of_any_length_are_refused(client: TestClient, route: str, digits: int) -> None:
    assert client.get(f"/{TOKEN}/{route}/{'9' * digits}").status_code in (400, 404)
    assert client.get(f"/{TOKEN}/{route}/x").status_code == 400


def test_handshakes_of_websockets_are_refused(client: TestClient) -> None:
    headers = {"connection": "Upgrade", "upgrade": "websocket"}
    assert client.get(f"/{TOKEN}/", headers=headers).status_code == 400
    assert client.get("/x/", headers=headers).status_code == 403


def test_answers_with_half_of_a_surrogate_pair_can_be_encoded(client: TestClient) -> None:
    content = b'{"system": 0, "sampler": "\\ud800"}'
    response = client.post(f"/{TOKEN}/generate", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400 and "\\ud800" in response.json()["sentence"]
