"""A small checkpoint with a tokenizer of characters and a chat template, and files of rows."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llama_fixtures import SMALL, write_small
from tokenizers import Tokenizer as SubwordModel
from tokenizers import decoders, models, pre_tokenizers

EOS, BOS = 2, 1
TEMPLATE = (
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)


def write_instruct(folder: Path, name: str = "llada", *, template: str | None = TEMPLATE) -> Path:
    """A small checkpoint with a tokenizer of characters, and a chat template."""
    source = write_small(folder, name, replace(SMALL, positions=64))
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"bos_token_id": BOS, "eos_token_id": EOS}))
    characters = ["_", "^", "$", *"0123456789 +=?<>/ausy."]
    model = SubwordModel(models.BPE({one: i for i, one in enumerate(characters)}, []))
    model.pre_tokenizer, model.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    model.save(str(source / "tokenizer.json"))
    settings = {} if template is None else {"chat_template": template}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    return source


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
