"""Attacks through checkpoints: mixed and impossible states, recipes of any size, references of strangers, signals."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file

from attacks import attack
from attacks.files import deadline, edit_recipe, limited_memory, refuse
from logosphere import UserError, build, load, options, systems
from logosphere.data.corpora import open_corpus
from logosphere.data.corpus import Corpus
from logosphere.data.tokenizers import text8_tokenizer
from logosphere.io import is_written_here
from logosphere.networks.config import NetworkConfig
from logosphere.runs.config import TrainConfig
from logosphere.runs.create import create_run
from logosphere.runs.evaluate import evaluate_run
from logosphere.runs.loop import Saved, run_training
from logosphere.runs.parents import config_from_parent
from logosphere.runs.run import Run
from logosphere.runs.settings import EvaluateConfig
from logosphere.runs.train_data import open_run_data
from logosphere.studio.models import StudioModel
from logosphere.training.checkpoint import latest, load_checkpoint, newest, save_checkpoint
from logosphere.training.optimizer import OptimizerConfig
from logosphere.training.trainer import Trainer
from logosphere.types import Batch

TEXT = "the cat sat on the mat and the dog sat on the log\n" * 20
CONFIG = TrainConfig(
    length=8, batch=4, steps=6, validations=3, validation_sequences=2, ema=0.9, device="cpu", precision="float32",
    network=NetworkConfig(width=8, depth=1, heads=1), optim=OptimizerConfig(lr=1e-2, warmup=2),
)  # fmt: skip
PARTS = ("model.safetensors", "ema.safetensors", "optimizer.safetensors", "state.json")
TOP = ("model.safetensors", "ema.safetensors")


@dataclass(frozen=True)
class CheckpointWorld:
    """A trained run, checkpoints of two of its steps, and a saved model of the same sizes."""

    folder: Path
    run: Path
    early: Path
    late: Path
    model: Path

    def copy(self, source: Path, name: str = "attack") -> Path:
        """A copy of a folder in place of that of the attack before."""
        path = self.folder / name / source.name
        shutil.rmtree(self.folder / name, ignore_errors=True)
        shutil.copytree(source, path)
        return path


@contextmanager
def open_world(folder: Path) -> Iterator[CheckpointWorld]:
    with patch.dict(os.environ, {"XDG_DATA_HOME": str(folder / "data-home")}):
        (folder / "text.txt").write_text(TEXT)
        config = replace(CONFIG, data=str(folder / "text.txt"))
        run = create_run(config, open_corpus(config.data, "characters"), folder / "run")
        kept = {}
        for event in run_training(run, open_run_data(run)):
            if isinstance(event, Saved):
                kept[event.step] = folder / "kept" / f"step-{event.step:08d}"
                shutil.copytree(run.state / f"step-{event.step:08d}", kept[event.step])
        model = build("mdlm", vocab_size=27, length=8, width=8, depth=1, heads=1)
        model.tokenizer = text8_tokenizer()
        model.save(folder / "model")
        yield CheckpointWorld(folder, run.path, kept[2], kept[4], folder / "model")


def resume(path: Path) -> None:
    """Take the next step of a run."""
    run = Run(path)
    run = Run(path, trust_references=True) if not run.trusted else run
    next(run_training(run, open_run_data(run)))


def state_of(run: Path) -> Path:
    found = latest(run / "state")
    assert found is not None
    return found


def edit_state(checkpoint: Path, **changes: object) -> None:
    content = json.loads((checkpoint / "state.json").read_bytes())
    (checkpoint / "state.json").write_text(json.dumps(content | changes))


# ---- mixed checkpoints ----------------------------------------------------------------------------------------------


@attack(*[(part, other) for part in PARTS for other in ("early", "late")])
def mix_checkpoints(variant: tuple[str, str], world: CheckpointWorld) -> None:
    """A file of a checkpoint is that of another step: a resumed training would go on with it silently."""
    part, other = variant
    run = world.copy(world.run)
    checkpoint = state_of(run)
    (checkpoint / part).unlink()
    shutil.copyfile(getattr(world, other) / part, checkpoint / part)
    refuse(lambda: resume(run))


@attack("early", "late")
def rename_checkpoint(other: str, world: CheckpointWorld) -> None:
    """A whole checkpoint has the name of another step."""
    run = world.copy(world.run)
    checkpoint = state_of(run)
    shutil.rmtree(checkpoint)
    shutil.copytree(getattr(world, other), checkpoint)
    assert "of step" in refuse(lambda: resume(run))


@attack(*[(name, other) for name in TOP for other in ("early", "late")])
def mix_weights(variant: tuple[str, str], world: CheckpointWorld) -> None:
    """The weights at the top of a run are those of a step that is neither the last nor the one before."""
    name, other = variant
    run = world.copy(world.run)
    tensors = load_file(getattr(world, other) / name)
    (run / name).unlink()
    save_file({key: tensor + 1 for key, tensor in tensors.items()}, run / name)
    refuse(lambda: Run(run).model("ema" if name.startswith("ema") else "model"))


@attack(*TOP)
def lag_behind(name: str, world: CheckpointWorld) -> None:
    """A training was killed before it linked its last weights: those of the checkpoint are taken, not the old ones."""
    run = world.copy(world.run)
    (run / name).unlink()
    shutil.copyfile(world.late / name, run / name)
    found = Run(run).model("ema" if name.startswith("ema") else "model").state_dict()
    saved = load_file(state_of(run) / name)
    assert all(torch.equal(found[key], tensor) for key, tensor in saved.items())


@attack(*PARTS[:3])
def forget_hashes(name: str, world: CheckpointWorld) -> None:
    """A checkpoint of an earlier version has no hashes, and must be read."""
    run = world.copy(world.run)
    checkpoint = state_of(run)
    content = json.loads((checkpoint / "state.json").read_bytes())
    content["files"].pop(name)
    (checkpoint / "state.json").write_text(json.dumps({key: content[key] for key in content if key != "previous"}))
    resume(run)
    Run(run).model()


COUNTS: tuple[dict[str, object], ...] = (
    {"step": -5}, {"step": -1}, {"step": 10**30}, {"step": 2.5}, {"step": "6"}, {"step": True}, {"step": None},
    {"tokens": -1}, {"tokens": "many"}, {"tokens": 1e9}, {"ema_updates": -1}, {"ema_updates": "x"}, {"step": 7},
    {"seconds": "x"}, {"files": []}, {"files": {"model.safetensors": 5}}, {"files": "x"}, {"best": []},
    {"usual": "x"}, {"files": {"model.safetensors": "0" * 64}}, {"cpu_seconds": None},
)  # fmt: skip


@attack(*COUNTS)
def forge_counts(changes: dict[str, object], world: CheckpointWorld) -> None:
    """state.json has counts that no training has."""
    run = world.copy(world.run)
    edit_state(state_of(run), **changes)
    refuse(lambda: resume(run))


@attack(*[name for name in PARTS])
def remove_part(name: str, world: CheckpointWorld) -> None:
    """A file of a checkpoint is missing."""
    run = world.copy(world.run)
    (state_of(run) / name).unlink()
    refuse(lambda: resume(run))


@attack("files", "model")
def swap_saved_weights(kind: str, world: CheckpointWorld) -> None:
    """The weights of a model that was saved are others of the same shapes."""
    folder = world.copy(world.model)
    tensors = load_file(folder / "model.safetensors")
    save_file({key: tensor + 1 for key, tensor in tensors.items()}, folder / "model.safetensors")
    assert "sha256" in refuse(lambda: load(folder))
    if kind == "files":  # a folder of an earlier version has no hash
        edit_recipe(folder, files={})
        load(folder)


# ---- saving under adverse conditions --------------------------------------------------------------------------------


def make_trainer(steps: int) -> Trainer:
    trainer = Trainer(build("mdlm", vocab_size=5, length=4, width=8, depth=1, heads=1), ema=0.9)
    for _ in range(steps):
        trainer.train_step(Batch.of(torch.zeros(2, 4, dtype=torch.long)), 0.0)
    return trainer


DISTURBANCES: dict[str, Callable[[Path], object]] = {
    "no pointer": lambda state: (state / "latest.json").unlink(),
    "no checkpoint": lambda state: shutil.rmtree(next(state.glob("step-*"))),
    "no state": lambda state: shutil.rmtree(state),
    "an empty pointer": lambda state: (state / "latest.json").write_bytes(b""),
    "a binary pointer": lambda state: (state / "latest.json").write_bytes(bytes(range(256))),
    "a list as pointer": lambda state: (state / "latest.json").write_text("[]"),
    "a pointer elsewhere": lambda state: (state / "latest.json").write_text('{"checkpoint": "/etc"}'),
    "a file as checkpoint": lambda state: (state / "step-00000003").write_text("x"),
    "no state.json": lambda state: next(state.glob("step-*/state.json")).unlink(),
    "a broken state.json": lambda state: next(state.glob("step-*/state.json")).write_text("{"),
}  # fmt: skip


@attack(*DISTURBANCES)
def disturb_saving(name: str, world: CheckpointWorld) -> None:
    """What a live training has saved is removed or damaged: it must save anew, and what it saves be read."""
    state = world.folder / "live"
    shutil.rmtree(state, ignore_errors=True)
    trainer = make_trainer(2)
    save_checkpoint(state, trainer, {})
    DISTURBANCES[name](state)
    trainer.train_step(Batch.of(torch.zeros(2, 4, dtype=torch.long)), 0.0)
    save_checkpoint(state, trainer, {})
    found, other = latest(state), make_trainer(0)
    assert found is not None
    load_checkpoint(found, other)
    assert other.step == 3


@attack("", "[]", "{", '{"checkpoint": "step-00000099"}')
def recover_pointer(text: str, world: CheckpointWorld) -> None:
    """latest.json is lost or damaged after a training: the checkpoint beside it is resumed, not begun anew."""
    run = world.copy(world.run)
    (run / "state" / "latest.json").write_text(text)
    assert (
        newest(run / "state") == state_of(world.run).parent.parent.parent / "attack" / "run" / "state" / "step-00000006"
    )
    resume(run)


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from logosphere.runs.train import Interrupts
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # this process may be started by nohup, which it would respect
seen = Interrupts("resume")
with seen.handled():
    os.kill(os.getpid(), int(sys.argv[1]))
    time.sleep(0.05)
    print(seen.requested)
"""


@attack(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
def interrupt_training(number: signal.Signals, world: CheckpointWorld) -> None:
    """A signal asks a training to stop: the step is saved first."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(int(number))], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "True", done.stderr[-200:]


# ---- sizes that the weights do not hold -----------------------------------------------------------------------------

SIZES = (
    {"width": 4096, "depth": 1024, "heads": 8}, {"width": 1 << 17}, {"depth": 1024}, {"width": 8192, "depth": 64},
    {"source": 1 << 24}, {"labels": 1 << 24}, {"source": 1 << 23, "source_length": 1 << 23},
    {"signal": 1 << 24}, {"timesteps": 10**12}, {"timesteps": 10**5}, {"width": 10**30}, {"depth": -1},
    {"body": "convolution", "width": 8192, "depth": 256}, {"body": "ddit", "width": 1 << 16, "depth": 64},
)  # fmt: skip


@attack(*SIZES)
def ask_for_memory(changes: dict[str, object], world: CheckpointWorld) -> None:
    """A recipe of a few bytes describes a network that would fill the memory."""
    folder = world.copy(world.model)
    model = json.loads((folder / "recipe.json").read_bytes())["model"]
    edit_recipe(folder, model=model | {"options": model["options"] | changes})
    with limited_memory():
        refuse(lambda: load(folder))


@attack(*[(name, size) for name in ("vocab_size", "length") for size in (1 << 20, 1 << 24, 10**12)])
def ask_for_sizes(variant: tuple[str, int], world: CheckpointWorld) -> None:
    """A vocabulary or a length of millions, which the weights do not hold."""
    name, size = variant
    folder = world.copy(world.model)
    model = json.loads((folder / "recipe.json").read_bytes())["model"]
    edit_recipe(folder, model=model | {name: size})
    (folder / "tokenizer.json").unlink()
    with limited_memory(), deadline():
        try:
            load(folder)
        except UserError:
            return
    assert name == "length", "the weights do not fit such a vocabulary"


@attack(*systems())
def ask_each_system(name: str, world: CheckpointWorld) -> None:
    """Every whole number among the options of a system is a billion: refused, or built within limits."""
    folder = world.folder / "attack"
    known = {key: value for key, value in options(name).items() if type(value) is int or key == "timesteps"}
    for option in known:
        for size in (10**9, 10**5):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(world.model, folder)
            spec = {"system": name, "vocab_size": 27, "length": 8, "preset": "default"}
            sizes = {"width": 8, "depth": 1, "heads": 1}
            edit_recipe(folder, model=spec | {"options": sizes | {option: size}}, files={})
            with limited_memory(), deadline(60):
                try:
                    load(folder)
                except UserError:
                    continue


# ---- references of strangers ----------------------------------------------------------------------------------------


def make_foreign(folder: Path, **changes: object) -> Path:
    """Change a recipe as a stranger would, who has not the key of this machine."""
    edit_recipe(folder, **changes)
    assert not is_written_here(folder / "recipe.json")
    return folder


def latent_spec(encoder: str) -> dict[str, object]:
    options = {"width": 8, "depth": 1, "heads": 1, "encoder": encoder}
    return {"system": "tencdm", "vocab_size": 27, "length": 8, "options": options, "preset": "default"}


ENCODERS = ("hf:stranger/encoder", "hf:../../etc/passwd", "hf:http://169.254.169.254/latest", "hf:a")
WAYS: dict[str, Callable[[Path], object]] = {
    "load": lambda folder: load(folder),
    "sample": lambda folder: Run(folder, trained=False).model(),
    "evaluate": lambda folder: evaluate_run(folder, EvaluateConfig(data="pydoc")),
    "studio": lambda folder: StudioModel("a", Run(folder, trained=False)).model,
}


@attack(*[(encoder, way) for encoder in ENCODERS for way in WAYS])
def fetch_encoder(variant: tuple[str, str], world: CheckpointWorld) -> None:
    """A stranger's recipe names an encoder of the hub: it must not be contacted unasked."""
    encoder, way = variant
    folder = make_foreign(world.copy(world.model), model=latent_spec(encoder))
    contacted: list[str] = []
    with patch("logosphere.autoencoders.pretrained.HuggingFaceEncoder.__init__", side_effect=contacted.append):
        assert "--trust-references" in refuse(lambda: WAYS[way](folder))
    assert not contacted


DATA = ("/etc/passwd", "hf:stranger/data", "letters:/etc/passwd", "lines:/etc/passwd", "stream:stranger/data", "~/.ssh")


@attack(*[(data, way) for data in DATA for way in ("evaluate", "export", "studio")])
def open_named_data(variant: tuple[str, str], world: CheckpointWorld) -> None:
    """A stranger's recipe names a private file or a dataset of the hub: it must not be opened unasked."""
    data, way = variant
    folder = world.copy(world.run)
    recipe = json.loads((folder / "recipe.json").read_bytes())["recipe"]
    make_foreign(folder, recipe=recipe | {"data": data})
    opened: list[str] = []
    ways: dict[str, Callable[[], object]] = {
        "evaluate": lambda: evaluate_run(folder),
        "export": lambda: open_run_data(Run(folder)),
        "studio": lambda: StudioModel("a", Run(folder)).held_out(2),
    }
    with (
        patch("logosphere.runs.train_data.open_corpus", side_effect=opened.append),
        patch("logosphere.studio.models.open_corpus", side_effect=opened.append),
    ):
        refuse(ways[way])
    assert not opened


@attack("/etc/passwd", "hf:stranger/data", "~/.ssh/id_rsa")
def begin_with_stranger(data: str, world: CheckpointWorld) -> None:
    """A training begins with a stranger's weights: the data that the stranger names are no default of it."""
    folder = world.copy(world.run)
    recipe = json.loads((folder / "recipe.json").read_bytes())["recipe"]
    make_foreign(folder, recipe=recipe | {"data": data})
    assert config_from_parent(str(folder)).data == TrainConfig().data


@attack("own", "trusted", "named")
def trust_references(kind: str, world: CheckpointWorld) -> None:
    """What was made here, is trusted or names a corpus of the catalogue is opened without asking."""
    folder = world.copy(world.run)
    if kind != "own":
        recipe = json.loads((folder / "recipe.json").read_bytes())["recipe"]
        make_foreign(folder, recipe=recipe | ({"data": "pydoc"} if kind == "named" else {"seed": 7}))
    run = Run(folder, trust_references=kind == "trusted")
    if kind == "named":
        opened: list[str] = []

        def note(source: str, *rest: object, **more: object) -> Corpus:
            opened.append(source)
            return open_corpus(Run(world.run).config.data, "characters")

        with patch("logosphere.runs.train_data.open_corpus", side_effect=note):
            open_run_data(run)
        assert opened == ["pydoc"]
    else:
        assert open_run_data(run).tokenizer.size > 2


@attack("0" * 64, "", None, 5, [], "é")
def forge_mark(mark: object, world: CheckpointWorld) -> None:
    """A stranger invents the mark of a recipe."""
    folder = world.copy(world.run)
    assert is_written_here(folder / "recipe.json")
    edit_recipe(folder, origin=mark)
    assert not is_written_here(folder / "recipe.json")
    Run(folder).model()


@attack(replace(CONFIG, seed=1), replace(CONFIG, data="x"))
def change_marked_recipe(config: TrainConfig, world: CheckpointWorld) -> None:
    """A recipe that was written here is changed afterwards."""
    folder = world.copy(world.run)
    edit_recipe(folder, recipe=json.loads(json.dumps(vars(config), default=vars)))
    assert not is_written_here(folder / "recipe.json")
