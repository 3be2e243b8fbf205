"""Chat templates of instruct models: a conversation as the text that the model was trained on.

A template comes with a checkpoint and is a program of a stranger. It runs in the sandbox of jinja2, in a process of its
own (`chat_process.py`), sees messages and the texts of special tokens and nothing else; its time, its memory and what
it writes are limited.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from logosphere.checkpoints import chat_process
from logosphere.checkpoints.chat_process import MAX_TEXT
from logosphere.errors import UserError, shorten

SECONDS = 20.0
"""Time until the process is ended; most of it is for starting the process on a busy machine."""
MAX_TEMPLATE = 1 << 20
"""Characters of a template, at most; published ones have some thousand."""
PART, MAX_PART = 1 << 18, 256
"""Characters and conversations that a process renders, at most, unless one conversation has more."""

Message = Mapping[str, str]
"""`role` (system, user or assistant) and `content`."""


def make_messages(turns: Sequence[str], system: str = "") -> list[Message]:
    """The messages of a conversation, in which the user has the first and the last word."""
    if len(turns) % 2 == 0:
        raise UserError(
            f"A conversation alternates between user and model and ends with the user, so it has an odd number of "
            f"messages, not {len(turns)}."
        )
    if empty := [number for number, turn in enumerate(turns, 1) if not turn.strip()]:
        raise UserError(f"Message {empty[0]} of the conversation is empty; write something.")
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    roles = ("user", "assistant")
    return [*messages, *({"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns))]


def render_chat(template: str, messages: Sequence[Message], special: Mapping[str, str]) -> str:
    """The text of a conversation, up to where the answer of the model begins.

    `special` are the texts of special tokens by name, such as {"bos": "<s>"}, which the template knows as bos_token.
    """
    return render_chats(template, [messages], special)[0]


def render_chats(
    template: str, conversations: Sequence[Sequence[Message]], special: Mapping[str, str], *, answering: bool = True
) -> list[str]:
    """The texts of conversations: up to where the answer of the model begins or, unless `answering`, with an answer."""
    if len(template) > MAX_TEMPLATE:
        raise UserError(f"The chat template has {len(template):,} characters; at most {MAX_TEMPLATE:,} are read.")
    texts: list[str] = []
    for part in _divide(conversations):
        request = {"template": template, "special": dict(special), "answering": answering}
        request["conversations"] = [[dict(message) for message in messages] for messages in part]
        texts += _read_answer(_run(json.dumps(request).encode("ascii")), len(texts), len(conversations))
    return texts


def _divide(conversations: Sequence[Sequence[Message]]) -> Iterator[list[Sequence[Message]]]:
    """Conversations in parts that one process renders: starting it takes longer than most parts."""
    part: list[Sequence[Message]] = []
    size = 0
    for messages in conversations:
        own = sum(len(message["content"]) for message in messages)
        if part and (size + own > PART or len(part) == MAX_PART):
            yield part
            part, size = [], 0
        part, size = [*part, messages], size + own
    if part:
        yield part


def _read_answer(answer: object, before: int, total: int) -> list[str]:
    """The texts of a part of `total` conversations that follows `before` others; UserError where there are none."""
    match answer:
        case {"texts": list(texts)}:
            return [str(text) for text in texts]
        case {"number": int(number)} if total > 1:
            which = f"conversation {before + number + 1:,}"
        case _:
            which = "this conversation"
    match answer:
        case {"long": _}:
            raise UserError(f"The chat template writes more than {MAX_TEXT:,} characters; use --prompt instead.")
        case {"forbidden": str(reason)}:
            raise UserError(f"The chat template does what none may do ({shorten(reason)}); it is not used.")
        case {"refused": str(reason)}:
            raise UserError(f"The chat template of this model refuses {which}: {shorten(reason)}.")
        case {"invalid": str(reason)}:
            raise UserError(f"The chat template of this model is not valid ({shorten(reason)}); use --prompt instead.")
        case {"failed": str(reason)}:
            raise UserError(f"The chat template fails on {which} ({shorten(reason)}); use --prompt instead.")
    raise UserError(
        f"The chat template takes more than {chat_process.CPU_SECONDS} seconds or too much memory; use "
        "--prompt instead."
    )


def _run(request: bytes) -> object:
    """The answer of the process, or None where it did not end in time and in good order."""
    # -P: no module of this folder is found by a name of the standard library.
    command = [sys.executable, "-P", str(Path(chat_process.__file__).resolve())]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONINSPECT"}
    try:
        done = subprocess.run(
            command, input=request, capture_output=True, timeout=SECONDS, env=environment, check=False
        )
        return json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return None
    except OSError as problem:
        raise UserError(
            f"The chat template needs a process of its own, which could not be started ({problem.strerror}); use "
            "--prompt instead."
        ) from None
