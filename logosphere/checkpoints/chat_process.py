"""The process in which a chat template runs: a program that `chat.py` starts, reads a request and writes an answer.

A loop of a template, or an operation that makes a very large value, cannot be interrupted by the process that waits for
it. This one has limits of its own (processor time, memory) and is ended when its time is over. It imports jinja2 and
nothing of this package, so that it starts in a tenth of a second.
"""

import json
import re
import sys
from datetime import datetime
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_TEXT = 1 << 20
"""Characters of the conversations of a request, at most."""
CPU_SECONDS = 5
"""Processor time of a request; the template of a published model takes milliseconds a conversation."""
MEMORY = 1 << 29
"""Bytes of the address space of the process, which is some 60 MB with jinja2."""
_TRAINING_TAG = re.compile(r"(\{%[-+]?\s*)generation(\s*[-+]?%\})")
_TRAINING_END = re.compile(r"(\{%[-+]?\s*)endgeneration(\s*[-+]?%\})")


class Refused(Exception):
    """The template called `raise_exception`."""


def set_limits() -> None:
    """Limit memory and processor time, where the system can; the waiting process limits time in any case."""
    try:
        import resource
    except ImportError:  # Windows
        return
    for kind, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, CPU_SECONDS), (resource.RLIMIT_CORE, 0)):
        try:
            resource.setrlimit(kind, (most, most))
        except (OSError, ValueError):  # macOS limits no address space; an administrator may have set less
            continue


def render(
    template: str, conversations: list[list[dict[str, str]]], special: dict[str, str], answering: bool
) -> dict[str, Any]:
    """The texts of conversations, or why there are none: a reason, its kind, and the number of the conversation."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _format_time}
    values: dict[str, Any] = {"add_generation_prompt": answering, "tools": None}
    values |= {f"{name}_token": "" for name in ("bos", "eos", "pad", "unk")}
    values |= {f"{name}_token": text for name, text in special.items()}
    plain = _TRAINING_END.sub(r"\1endif\2", _TRAINING_TAG.sub(r"\1if true\2", template))
    texts: list[str] = []
    size = 0
    try:
        program = environment.from_string(plain)
        for messages in conversations:
            parts = []
            for part in program.generate(values | {"messages": messages}):
                parts.append(part)
                if (size := size + len(part)) > MAX_TEXT:
                    return {"long": "", "number": len(texts)}
            texts.append("".join(parts))
        return {"texts": texts}
    except Refused as problem:
        return {"refused": str(problem)[:1000], "number": len(texts)}
    except SecurityError as problem:
        return {"forbidden": str(problem)[:1000], "number": len(texts)}
    except jinja2.TemplateSyntaxError as problem:
        return {"invalid": str(problem)[:1000], "number": len(texts)}
    except MemoryError:
        texts.clear()
        return {"failed": "it needs too much memory", "number": 0}
    except Exception as problem:  # of whatever the template computes
        return {"failed": (str(problem) or type(problem).__name__)[:1000], "number": len(texts)}


def _refuse(message: object) -> None:
    """`raise_exception` of templates: for conversations that the model was not trained on."""
    raise Refused(message)


def _format_time(form: str) -> str:
    """`strftime_now` of templates that state the date."""
    return datetime.now().strftime(form)


def main() -> None:
    """Read a request from the standard input and write the answer to the standard output, both JSON in ASCII."""
    request = json.loads(sys.stdin.buffer.read())
    set_limits()
    answer = render(**request)
    sys.stdout.buffer.write(json.dumps(answer).encode("ascii"))


if __name__ == "__main__":
    main()
