"""Bad input of every kind: recipes, checkpoints, corpora, prompts and words on the command line.

Whatever comes in, there is a result or a UserError: no other exception, no hang, no code run, no file changed or lost.
Half of the cases are drawn by hypothesis, half are mutations of sound files with fixed seeds.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_run import RECIPE

import logosphere as ls
from logosphere.cli import main
from logosphere.data.corpora import open_corpus
from logosphere.data.tokenizer_registry import load_tokenizer
from logosphere.data.tokenizers import ByteTokenizer, encode_infill, encode_prompt, text8_tokenizer
from logosphere.errors import UserError
from logosphere.evaluation.report import Report
from logosphere.io import read_tensors
from logosphere.runs.config import TrainConfig, config_from_dict, read_config_file
from logosphere.runs.create import create_run
from logosphere.runs.loop import run_training
from logosphere.runs.run import Run
from logosphere.training.optimizer import OptimizerConfig

CASES = 150
QUICK = settings(
    max_examples=CASES, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
DATA = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner))
FIELDS = st.sampled_from([*TrainConfig.__dataclass_fields__, "nonsense"])
EVIL = "!!python/object/apply:os.system ['touch {mark}']"


def met(call: Callable[[], object]) -> bool:
    """Was the call refused with a sentence? Any other exception is a failure of the test."""
    try:
        call()
    except UserError as problem:
        assert str(problem).strip() and "Traceback" not in str(problem)
        return True
    return False


def mutations(sound: bytes, seed: int, count: int) -> Iterator[bytes]:
    """Flipped bits, cuts, doublings, foreign bytes, and enormous numbers where headers are."""
    chance = random.Random(seed)
    for _ in range(count):
        content = bytearray(sound)
        kind = chance.randrange(6)
        place = chance.randrange(len(content))
        if kind == 0:
            for _ in range(chance.randrange(1, 9)):
                content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del content[place:]
        elif kind == 2:
            content[place:place] = content[: chance.randrange(1, 200)]
        elif kind == 3:
            content[place : place + 8] = chance.randbytes(8)
        elif kind == 4:
            content[:8] = chance.choice([b"\xff" * 8, bytes(8), (1 << 40).to_bytes(8, "little"), chance.randbytes(8)])
        else:
            del content[place : place + chance.randrange(1, 40)]
        yield bytes(content)


# ---- recipes ----------------------------------------------------------------------------------------------------


@QUICK
@given(st.dictionaries(FIELDS, DATA, max_size=5) | DATA)
def test_arbitrary_recipes_are_read_or_refused(content: object) -> None:
    met(lambda: config_from_dict(content, "here"))


@QUICK
@given(st.lists(st.text(max_size=9) | st.builds("{}={}".format, st.text(max_size=3), st.text(max_size=9)), max_size=3))
def test_arbitrary_options_are_read_or_refused(options: list[str]) -> None:
    met(TrainConfig(options=tuple(options)).system_options)


def test_damaged_recipe_files_are_read_or_refused(tmp_path: Path) -> None:
    path, mark = tmp_path / "recipe.yaml", tmp_path / "mark"
    sound = yaml.safe_dump({"length": 8, "network": {"width": 16}, "optim": {"lr": 0.1}, "options": ["a=1"]}).encode()
    evil = [EVIL.format(mark=mark), "a: &a [*a]", "&a [*a, *a]", "\x00", "é" * 9, "{" * 3000, "[" * 3000, "? " * 900]
    for content in [*mutations(sound, 1, CASES), *(text.encode("latin-1", "ignore") for text in evil)]:
        path.write_bytes(content)
        met(lambda: read_config_file(path))
        assert path.read_bytes() == content
    assert not mark.exists()


def test_yaml_numbers_and_nested_references(tmp_path: Path) -> None:
    """YAML takes 1e-3 for a word and a list of lists of lists for cheap; JSON and people do not."""
    path, recipe = (
        tmp_path / "recipe.json",
        TrainConfig(options=("sigma=1e-3", "name=1e", "other=-2E+4"), optim=OptimizerConfig(lr=5e-5)),
    )
    path.write_text(json.dumps(asdict(recipe)))
    assert read_config_file(path) == recipe
    assert recipe.system_options() == {"sigma": 0.001, "name": "1e", "other": -20_000.0}
    nested = "".join(f"- &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    path.write_text("data:\n- &a x\n" + nested)  # three hundred bytes that would be a hundred million words
    with pytest.raises(UserError, match="must be of type str") as refused:
        read_config_file(path)
    assert len(str(refused.value)) < 1000


# ---- checkpoints and runs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sound")
    os.environ["LOGOSPHERE_CACHE"] = str(place / "cache")
    (place / "text.txt").write_text("the cat sat on the mat and the dog sat on the log\n" * 40)
    corpus = open_corpus(str(place / "text.txt"), "characters")
    recipe = TrainConfig(**{**vars(RECIPE), "steps": 2, "validations": 1, "data": str(place / "text.txt")})
    run = create_run(recipe, corpus, place / "run")
    list(run_training(run, corpus))
    return place


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "ema.safetensors"])
def test_damaged_weights_are_read_or_refused(name: str, sound_run: Path, tmp_path: Path) -> None:
    (checkpoint,) = (sound_run / "run" / "state").glob("step-*")
    sound, path = (checkpoint / name).read_bytes(), tmp_path / name
    refused = 0
    for content in mutations(sound, 2, CASES // 2):
        path.write_bytes(content)
        refused += met(lambda: read_tensors(path))
        assert path.read_bytes() == content
    assert refused > CASES // 5


@pytest.mark.parametrize("name", ["recipe.json", "model.safetensors", "ema.safetensors", "tokenizer.json"])
def test_damaged_models_are_read_or_refused(name: str, sound_run: Path, tmp_path: Path) -> None:
    """Sound headers with NaN or wrong shapes behind them included: flips reach everywhere."""
    run = tmp_path / "run"
    shutil.copytree(sound_run / "run", run)
    sound = (run / name).read_bytes()
    for content in mutations(sound, 3, 60):
        (run / name).unlink()
        (run / name).write_bytes(content)
        met(lambda: ls.load(run))
        met(lambda: Run(run).model("model"))
        met(lambda: load_tokenizer(run / "tokenizer.json"))


@pytest.mark.parametrize("name", ["state.json", "latest.json", "report.json"])
def test_damaged_run_files_are_read_or_refused(name: str, sound_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(sound_run / "run", run)
    corpus = open_corpus(str(sound_run / "text.txt"), "characters", cache=sound_run / "cache")
    (checkpoint,) = (run / "state").glob("step-*")
    path = {"state.json": checkpoint / name, "latest.json": run / "state" / name}.get(name, run / "eval" / name)
    if name == "report.json":
        main(["evaluate", str(sound_run / "run"), "--sequences", "2", "--json"])
        shutil.copy2(next((sound_run / "run" / "eval").glob("*.json")), path)
    for content in mutations(path.read_bytes(), 4, 25):
        path.write_bytes(content)
        if name == "report.json":
            met(lambda: Report.load(path))
        else:
            met(lambda: next(run_training(Run(run), corpus)))
    weights = (checkpoint / "model.safetensors").read_bytes()
    assert weights == (sound_run / "run" / "state" / checkpoint.name / "model.safetensors").read_bytes()


# ---- corpora and prompts ----------------------------------------------------------------------------------------


def test_damaged_corpora_are_read_or_refused(tmp_path: Path) -> None:
    line = json.dumps({"text": "Grüße aus dem Wald, sagte der Igel. " * 3}) + "\n"
    for suffix, sound in ((".txt", ("Grüße aus dem Wald. " * 20).encode()), (".jsonl", line.encode() * 5)):
        for number, content in enumerate(mutations(sound, 5, 40)):
            path = tmp_path / f"text-{number}{suffix}"
            path.write_bytes(content)
            met(lambda path=path: open_corpus(str(path), "byte", cache=tmp_path / "cache"))
            assert path.read_bytes() == content


@QUICK
@given(st.text(max_size=40) | st.text(alphabet="[].0123456789 ab", max_size=30), st.integers(1, 24))
def test_arbitrary_prompts_are_read_or_refused(text: str, length: int) -> None:
    for tokenizer in (text8_tokenizer(), ByteTokenizer()):
        met(lambda tokenizer=tokenizer: encode_prompt(text, tokenizer, length))
        met(lambda tokenizer=tokenizer: encode_infill(text, tokenizer, length))


# ---- the command line -------------------------------------------------------------------------------------------

WORDS = [
    "train", "evaluate", "sample", "compare", "systems", "data", "launch", "--help", "--json", "--version", "--out",
    "--steps", "--nproc", "--batch", "--data", "--resume", "--network.width", "--optim.lr", "--seed", "-n", "get",
    "list", "0", "-1", "1e999", "nan", "..", "/", "/dev/null", "", "\x00", "é", "{}", "--", "---", "=", "nowhere",
    "mdlm", "demo", "text8-tiny", "--length=0", "--batch=0", "--minutes=-1", "--device=abacus", "--tokenizer=bpe:0",
]  # fmt: skip


@pytest.mark.slow
@QUICK
@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=8), max_size=5))
def test_arbitrary_command_lines_exit_cleanly(words: list[str]) -> None:
    """Nothing is trained here: whatever would be a sound training is asked for a length of 0."""
    if "train" in words[:1] or "compare" in words[:1]:
        words = [*words, "--batch=0" if words[0] == "train" else "--systems=nothing"]
    if "data" in words[:1] and "get" in words:
        words = [word for word in words if word not in ("text8", "/", "..")]
    assert main(words) in (0, 1, 2)


def test_invalid_command_lines_print_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    chance = random.Random(6)
    for _ in range(CASES):
        words = [chance.choice(WORDS) for _ in range(chance.randrange(1, 5))]
        if words[0] in ("train", "compare"):
            words.append("--steps=0")
        main(words)
        said = capsys.readouterr().err
        assert "Traceback" not in said and "This should not happen" not in said, (words, said)
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("cache", "runs")] == []


def test_archives_are_never_unpacked_onto_the_disk() -> None:
    """Members are read into memory by name, so no path inside an archive ever becomes a path on the disk."""
    for path in Path(ls.__file__).parent.rglob("*.py"):
        words = path.read_text(encoding="utf-8")
        assert not any(call in words for call in (".extractall(", ".extract(", "unpack_archive(")), path
