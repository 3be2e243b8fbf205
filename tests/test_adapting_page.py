"""The page on adapting and fine-tuning: its commands and its Python run, on a tiny checkpoint of random weights."""

import json
import shlex
from pathlib import Path

import pytest
from instruct_fixtures import write_instruct
from page_helpers import blocks, commands

from logosphere.cli import main

PAGE = Path(__file__).parent.parent / "docs" / "adapting.md"
TINY = "--length 16 --batch 2 --steps 2 --validations 1 --validation-sequences 2"
SMALL = {
    "adapt": TINY,
    "train": TINY,
    "evaluate": "--sequences 2 --draws 1",
    "sample": "--steps 2 -n 1",
    "export": "",
}


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(tmp_path / "cache"))
    write_instruct(tmp_path / "hub", "smollm2").rename("my-llama")
    Path("my-text.txt").write_text("12+34=46. " * 400)
    rows = [{"source": f"{i}+1=", "target": f"{i + 1}."} for i in range(40)]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = blocks(PAGE, "json")
    assert {"source", "target"} == set(json.loads(shown[0].splitlines()[0])) and "messages" in json.loads(shown[1])
    ran = 0
    for argv in commands(PAGE):
        words = [*argv, *shlex.split(SMALL[argv[0]])]
        if "--resume" in argv:  # with the budget of the page, for the length of the run is that of the test
            words = [*argv[: argv.index("--steps")], "--steps", "3"]
        if "--prompt" in argv:  # the tiny vocabulary has few letters
            words[words.index("--prompt") + 1] = "1+"
        if "--gen-length" in argv:
            words[words.index("--gen-length") + 1] = "4"
        assert main(words) == 0, words
        ran += 1
    assert ran >= 12
    (code,) = blocks(PAGE, "py")
    small = "lora=16, length=16, batch=2, steps=2, validations=1, validation_sequences=2"
    exec(compile(code.replace("lora=16", small), str(PAGE), "exec"), {})
