"""An instruct model of random weights in the layout of LLaDA, with a chat template."""

import json
from pathlib import Path

from published_fixtures import write_llada

from logosphere.data.tokenizer_registry import SubwordTokenizer

LLADA = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
TEXT = "the cat sat on a mat and ran to its red hat. " * 50
EOS, EOT = 1, 2


def write_instruct(folder: Path = Path("source"), template: str | None = LLADA, length: int = 320) -> Path:
    write_llada(folder, rows=320, length=length, mask=310)
    config = json.loads((folder / "config.json").read_text()) | {"eos_token_id": [EOS, 3], "bos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(SubwordTokenizer.train_bpe([TEXT], 300).describe()["json"])
    settings = {} if template is None else {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
