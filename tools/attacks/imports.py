"""Attacks through published checkpoints: configurations, shards and tokenizers of strangers, chat templates, hashes."""

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file

from attacks import attack
from attacks.files import deadline, edit_recipe, limited_memory, refuse
from logosphere import UserError, build, import_model, load
from logosphere.checkpoints import chat
from logosphere.checkpoints.chat import make_messages, render_chat
from logosphere.checkpoints.chat_process import MAX_TEXT
from logosphere.checkpoints.ddit_export import export_ddit
from logosphere.checkpoints.hub import is_hub, parse_source
from logosphere.data.tokenizers import text8_tokenizer
from logosphere.io import file_sha256
from logosphere.pretrained import checksums, resolve_folder
from logosphere.pretrained.hashes import HASHES, recorded_sha256, write_hashed
from logosphere.runs.import_checkpoint import default_folder, import_checkpoint
from logosphere.runs.publish import publish_run

CANARY = "the-private-line-of-another-file"


@dataclass(frozen=True)
class ImportWorld:
    """A published checkpoint, a saved model, and a private file beside them."""

    folder: Path
    source: Path
    model: Path
    secret: Path

    def copy(self, folder: Path) -> Path:
        """A copy of a folder in place of that of the attack before."""
        shutil.rmtree(self.folder / "attack", ignore_errors=True)
        shutil.copytree(folder, self.folder / "attack" / folder.name)
        return self.folder / "attack" / folder.name


@contextmanager
def open_world(folder: Path) -> Iterator[ImportWorld]:
    with patch.dict(os.environ, {"XDG_DATA_HOME": str(folder / "data-home")}):
        model = build("mdlm", vocab_size=27, length=8, width=16, depth=1, heads=2, body="ddit")
        export_ddit(model, folder / "source")
        model.tokenizer = text8_tokenizer()
        model.save(folder / "model")
        (folder / "secret.txt").write_text(CANARY)
        import_model(folder / "source")
        yield ImportWorld(folder, folder / "source", folder / "model", folder / "secret.txt")


def attempt(call: Callable[[], object], seconds: int = 60) -> str:
    """What a call answers: a sentence, or nothing where it succeeds; within limits of time and memory."""
    with limited_memory(), deadline(seconds):
        try:
            call()
        except UserError as problem:
            assert "\n" not in str(problem) and CANARY not in str(problem), str(problem)
            return str(problem)
    return ""


def edit_config(source: Path, **changes: Any) -> None:
    content = json.loads((source / "config.json").read_bytes())
    (source / "config.json").write_text(json.dumps(content | changes))


# ---- configurations --------------------------------------------------------------------------------------------------

CONFIGS: tuple[dict[str, Any], ...] = (
    {"hidden_dim": 1 << 20}, {"hidden_dim": -16}, {"hidden_dim": 0}, {"hidden_dim": "16"}, {"hidden_dim": 1e308},
    {"hidden_dim": [16]}, {"hidden_dim": True}, {"n_blocks": 10**6}, {"n_blocks": -1}, {"n_heads": 0},
    {"n_heads": 10**9}, {"n_heads": 3}, {"vocab_size": 10**12}, {"vocab_size": -1}, {"vocab_size": None},
    {"model_length": 10**12}, {"model_length": 0}, {"model_length": "\x1b]52;c;x\x07"}, {"cond_dim": 1 << 30},
    {"torch_dtype": "../../x"}, {"model_type": "\x1b[2J"}, {"model_type": "../../../etc/passwd"},
    {"architectures": ["x" * 100_000]}, {"quantization_config": {"a": {}}}, {"logosphere_overrides": [1]},
)  # fmt: skip


@attack(*CONFIGS)
def change_config(changes: dict[str, Any], world: ImportWorld) -> None:
    """A configuration has sizes that its weights have not, or values that are none: refused before memory is taken."""
    source = world.copy(world.source)
    edit_config(source, **changes)
    message = attempt(lambda: import_model(source))
    assert "\x1b" not in message or "\\x1b" in ascii(message)
    attempt(lambda: import_checkpoint(source, world.folder / "attack" / "out"))
    left = [path.name for path in (world.folder / "attack").iterdir() if path.name.startswith(".")]
    assert not left, left


@attack({"auto_map": {"AutoModel": "evil.Model"}}, {"trust_remote_code": True}, {"custom_code": "evil.py"})
def bring_code(changes: dict[str, Any], world: ImportWorld) -> None:
    """A checkpoint brings a module, which its configuration names; it must never be run."""
    source = world.copy(world.source)
    edit_config(source, **changes)
    for name in ("evil.py", "modeling_mdlm.py", "__init__.py", "sitecustomize.py"):
        (source / name).write_text(f"open({str(world.folder / 'ran')!r}, 'w')")
    attempt(lambda: import_model(source))
    assert not (world.folder / "ran").exists()


SHARDS = (
    "../../secret.txt", "/etc/passwd", "../../../../../../etc/passwd", "missing.safetensors", "", ".", "a/../b", "\0",
    "model.safetensors\0x", 5, None, ["model.safetensors"], "https://127.0.0.1:9/x", "file:///etc/passwd",
)  # fmt: skip


@attack(*SHARDS)
def name_shard(name: Any, world: ImportWorld) -> None:
    """The index of shards names a file that is elsewhere, or is none."""
    source = world.copy(world.source)
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, name)}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    assert attempt(lambda: import_model(source))


@attack("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
def link_to_secret(name: str, world: ImportWorld) -> None:
    """A file of a checkpoint is a link to a private file: an error must not quote it, nor a recipe keep it."""
    source = world.copy(world.source)
    (source / name).unlink(missing_ok=True)
    (source / name).symlink_to(world.secret)
    attempt(lambda: import_checkpoint(source, world.folder / "attack" / "out"))
    for path in (world.folder / "attack" / "out").rglob("*"):
        assert not path.is_file() or CANARY.encode() not in path.read_bytes(), f"{path.name} holds the private line"


@attack("x" * 200_000, {"content": ["a"]}, 5, {"content": "\x1b]0;x\x07"}, "{{ 7 * 7 }}", "{% for i in range(9) %}")
def name_special_token(token: Any, world: ImportWorld) -> None:
    """A special token is no text, or a template: it is data, and never rendered."""
    source = world.copy(world.source)
    settings = {f"{name}_token": token for name in ("bos", "eos", "pad", "mask")}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    attempt(lambda: import_model(source))
    if isinstance(token, str) and "{" in token:
        assert render_chat("{{ bos_token }}", make_messages(["a"]), {"bos": token}) == token


GGUF = (
    b"GGUF", b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**63), b"GGUF" + struct.pack("<IQQ", 3, 1, 2**40),
    b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62) + b"a", b"GGUF" + struct.pack("<IQQ", 99, 0, 0),
    b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 9, 2**60),
    b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9) * 5000,
)  # fmt: skip


@attack(*GGUF)
def forge_gguf(content: bytes, world: ImportWorld) -> None:
    """A GGUF file announces 2⁶³ tensors, a text of exabytes, or lists in lists."""
    path = world.folder / "forged.gguf"
    path.write_bytes(content)
    assert attempt(lambda: import_model(path))


NAMES = (
    "hf:../../etc",
    "hf:a/../../b",
    "hf:a/b@../../x",
    "hf:a/b/../../c",
    "hf:/etc/passwd",
    "hf:a/b\0c",
    "hf:a/\x1b[2J",
)


@attack(*NAMES)
def name_repository(name: str, world: ImportWorld) -> None:
    """The name of a repository leaves the folder of runs, or the cache."""
    try:
        parse_source(name)
    except UserError:
        return
    assert is_hub(name)
    folder = default_folder(name)
    assert folder.parent == Path("runs") and folder.name not in ("", ".", ".."), folder


# ---- chat templates --------------------------------------------------------------------------------------------------

TEMPLATES = (
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{{ 9 ** (9 ** 9) }}", "{{ 'x' * 10**10 }}", "{{ ('a,' * 10**8).split(',') | length }}", "{{ [[]] * 10**9 }}",
    "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{{ '%0999999999d' | format(1) }}", "{{ '{:>999999999}'.format(1) }}", "{{ 'a' | center(999999999) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ self.__init__.__globals__ }}", "{{ cycler.__init__ }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}", "{{ messages.__class__.__base__.__subclasses__() }}",
    "{{ ''.join.__self__.__class__.__mro__ }}", "{{ strftime_now.__globals__ }}", "{{ raise_exception.__code__ }}",
    "{{ strftime_now('%' * 100000 + 'Y') | length }}", "{% import 'os' as os %}", "{% extends '/etc/passwd' %}",
    "{{ '{0.__class__.__mro__}'.format('') }}", "{{ messages[0].update({'role': 'x'}) }}", "{{ range(10**6) | list }}",
    "{{ raise_exception('\x1b]52;c;eA==\x07') }}", "{{ 'a' | attr('__class__') }}", "{{ '\\ud800' }}",
    "{{ lipsum(n=10**6) | length }}", "{{ (messages | tojson) * 10**7 }}", "{{ {'a': 1} | xmlattr }}" * 5000,
)  # fmt: skip


@attack(*TEMPLATES)
def render_template(template: str, world: ImportWorld) -> None:
    """A chat template does not end, takes the memory of the machine, or leaves its sandbox."""
    home = os.environ.get("HOME", "/")
    with patch.object(chat, "SECONDS", 15.0):
        texts: list[str] = []
        message = attempt(lambda: texts.append(render_chat(template, make_messages(["a"]), {})), seconds=40)
    shown = message + "".join(texts)
    assert "\x1b" not in shown and "uid=" not in shown and "root:" not in shown and len(shown) <= MAX_TEXT + 1000
    assert "<class" not in "".join(texts) and home not in "".join(texts)


# ---- hashes ----------------------------------------------------------------------------------------------------------


@attack("model.safetensors", "tokenizer.json")
def publish_changed_file(name: str, world: ImportWorld) -> None:
    """A file is changed after it was saved: publishing must not give the changed file a new, valid hash."""
    folder = world.copy(world.model)
    if name == "tokenizer.json":
        (folder / name).write_text((folder / name).read_text() + "\n")
    else:
        save_file({key: tensor + 1 for key, tensor in load_file(folder / name).items()}, folder / name)
    assert "sha256" in refuse(lambda: publish_run(folder, "hf:a/b", dry_run=True))
    assert "sha256" in refuse(lambda: load(folder))


@attack('{"../secret.txt": ["0"]}', '{"model.safetensors": ["0", "1"]}', "[]", "nul", '{"x": {}}', '{"x": []}', "\xff")
def forge_hashes(text: str, world: ImportWorld) -> None:
    """hashes.json of a stranger names files elsewhere, or no hashes."""
    folder = world.copy(world.model)
    (folder / HASHES).write_text(text, encoding="latin-1")
    attempt(lambda: load(folder))
    attempt(lambda: recorded_sha256(folder, "best.safetensors"))


@attack("pipe", "device", "link")
def replace_hashes(kind: str, world: ImportWorld) -> None:
    """hashes.json is a pipe, a device or a link to a private file."""
    folder = world.copy(world.model)
    match kind:
        case "pipe":
            os.mkfifo(folder / HASHES)
        case "device":
            (folder / HASHES).symlink_to("/dev/zero")
        case _:
            (folder / HASHES).symlink_to(world.secret)
    assert attempt(lambda: load(folder))


@attack("fsync", "replace", "link")
def fail_while_replacing(name: str, world: ImportWorld) -> None:
    """The disk is full while a file and its hash are replaced: one of both versions is read afterwards."""
    folder = world.copy(world.model)
    first, second = ({"x": torch.full((4,), float(value))} for value in (1, 2))
    write_hashed(folder, "best.safetensors", first)
    for number in range(6):
        calls, real = [0], getattr(os, name)

        def fail(*args: Any, at: int = number, real: Any = real, calls: list[int] = calls, **options: Any) -> Any:
            calls[0] += 1
            if calls[0] > at:
                raise OSError(28, "No space left on device")
            return real(*args, **options)

        with patch.object(os, name, fail):
            try:
                write_hashed(folder, "best.safetensors", second)
            except OSError:
                pass
        found = load_file(folder / "best.safetensors")["x"]
        assert torch.equal(found, first["x"]) or torch.equal(found, second["x"])
        digest = recorded_sha256(folder, "best.safetensors")
        assert digest == file_sha256(folder / "best.safetensors"), f"{name} {number}"


@attack("model.safetensors", "recipe.json", "tokenizer.json")
def damage_bundled(name: str, world: ImportWorld) -> None:
    """A bit of a bundled checkpoint is flipped."""
    package = world.folder / "package"
    shutil.rmtree(package, ignore_errors=True)
    bundled = resolve_folder("pretrained:ar")
    shutil.copytree(bundled, package / "ar")
    shutil.copyfile(bundled.parent / checksums.SUMS, package / checksums.SUMS)
    content = bytearray((package / "ar" / name).read_bytes())
    content[len(content) // 2] ^= 1
    (package / "ar" / name).write_bytes(content)
    with patch("logosphere.pretrained.__file__", str(package / "__init__.py")):
        refuse(lambda: load("pretrained:ar"))


@attack(*[(width, depth) for width, depth in ((4096, 1024), (2048, 1024), (4096, 256), (64, 1024))])
def fill_weights(size: tuple[int, int], world: ImportWorld) -> None:
    """Weights with as many numbers as width × depth, so that the recipe is not refused by its sizes alone."""
    width, depth = size
    folder = world.copy(world.model)
    model = json.loads((folder / "recipe.json").read_bytes())["model"]
    options = {"width": width, "depth": depth, "heads": 8}
    edit_recipe(folder, model=model | {"options": options}, files={})
    save_file({"x": torch.zeros(width * depth + 1, dtype=torch.int8)}, folder / "model.safetensors")
    message = attempt(lambda: load(folder))
    assert "does not belong" in message, message or "it was loaded"
