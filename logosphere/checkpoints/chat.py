"""Chat templates of instruct models: a conversation as the text that the model was trained on.

A template comes with a checkpoint and is a program of a stranger. It runs in the sandbox of jinja2, sees messages and
the texts of special tokens and nothing else, and what it writes has a largest size.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from logosphere.errors import UserError, shorten

MAX_TEXT = 1 << 20
"""Characters of a conversation, at most."""
_TRAINING_TAG = re.compile(r"(\{%[-+]?\s*)generation(\s*[-+]?%\})")
_TRAINING_END = re.compile(r"(\{%[-+]?\s*)endgeneration(\s*[-+]?%\})")

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


def render_chat(
    template: str, messages: Sequence[Message], special: Mapping[str, str], *, answering: bool = True
) -> str:
    """The text of a conversation, up to where the answer of the model begins; unless `answering`, with its last answer.

    `special` are the texts of special tokens by name, such as {"bos": "<s>"}, which the template knows as bos_token.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _format_time}
    values: dict[str, Any] = {"messages": list(messages), "add_generation_prompt": answering, "tools": None}
    values |= {f"{name}_token": "" for name in ("bos", "eos", "pad", "unk")}
    values |= {f"{name}_token": text for name, text in special.items()}
    plain = _TRAINING_END.sub(r"\1endif\2", _TRAINING_TAG.sub(r"\1if true\2", template))
    parts, size = [], 0
    try:
        for part in environment.from_string(plain).generate(values):
            parts.append(part)
            if (size := size + len(part)) > MAX_TEXT:
                raise UserError(f"The chat template writes more than {MAX_TEXT:,} characters; use --prompt instead.")
    except UserError:
        raise
    except SecurityError as problem:
        raise UserError(f"The chat template does what none may do ({shorten(str(problem))}); it is not used.") from None
    except jinja2.TemplateSyntaxError as problem:
        reason = shorten(str(problem))
        raise UserError(f"The chat template of this model is not valid ({reason}); use --prompt instead.") from None
    except Exception as problem:  # of whatever the template computes
        reason = shorten(str(problem) or type(problem).__name__)
        raise UserError(f"The chat template fails on this conversation ({reason}); use --prompt instead.") from None
    return "".join(parts)


def _refuse(message: object) -> None:
    """`raise_exception` of templates: for conversations that the model was not trained on."""
    raise UserError(f"The chat template of this model refuses the conversation: {shorten(str(message))}.")


def _format_time(form: str) -> str:
    """`strftime_now` of templates that state the date."""
    return datetime.now().strftime(form)
