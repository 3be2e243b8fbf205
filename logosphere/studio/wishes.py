"""What a page may ask for: every field checked, every size limited, and the same wish as a command and as Python."""

import shlex
from dataclasses import dataclass
from typing import Any

import torch

from logosphere.data.prompting import encode_prompt
from logosphere.data.tokenizers import Tokenizer
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.sampling.catalogue import listing
from logosphere.types import Positions, Tokens

MOST_STEPS, MOST_TEXTS, MOST_PROMPT, MOST_TOKENS = 1024, 8, 4000, 16384
MOST_SHOWN = 1 << 22
"""Tokens over all steps, which a job keeps for its viewers."""
SEEDS = 2**31
FIELDS = {"system", "n", "steps", "prompt", "locks", "sampler", "temperature", "top_p", "seed"}


@dataclass(frozen=True)
class Lock:
    """A position held fixed: as the token it has, or as a text written there."""

    at: int
    token: int | None = None
    text: str | None = None


@dataclass(frozen=True)
class Wish:
    """Texts to be written."""

    system: int
    n: int = 1
    steps: int = 64
    prompt: str = ""
    locks: tuple[Lock, ...] = ()
    sampler: str = "auto"
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0

    @staticmethod
    def read(content: Any, systems: int) -> "Wish":
        """A wish out of what a stranger sent."""
        if not isinstance(content, dict) or not content.keys() <= FIELDS:
            raise UserError(f"A wish is an object with some of the fields {', '.join(sorted(FIELDS))}.")
        name = _text(content.get("sampler", "auto"), "sampler", 40)
        if name != "auto":
            listing(name)
        locks = content.get("locks", [])
        if not isinstance(locks, list) or len(locks) > MOST_TOKENS:
            raise UserError(f"Locks are a list of at most {MOST_TOKENS} positions.")
        return Wish(
            system=_whole(content.get("system"), "system", 0, systems - 1),
            n=_whole(content.get("n", 1), "n", 1, MOST_TEXTS),
            steps=_whole(content.get("steps", 64), "steps", 1, MOST_STEPS),
            prompt=_text(content.get("prompt", ""), "prompt", MOST_PROMPT),
            locks=tuple(_lock(lock) for lock in locks),
            sampler=name,
            temperature=_number(content.get("temperature", 1.0), "temperature", 0.01, 10.0),
            top_p=_number(content.get("top_p", 1.0), "top_p", 0.01, 1.0),
            seed=_whole(content.get("seed", 0), "seed", 0, SEEDS - 1),
        )


def _whole(value: Any, name: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise UserError(f"The field {name} must be a whole number from {least} to {most}.")
    return value


def _number(value: Any, name: str, least: float, most: float) -> float:
    if type(value) not in (int, float) or not least <= value <= most:
        raise UserError(f"The field {name} must be a number from {least:g} to {most:g}.")
    return float(value)


def _text(value: Any, name: str, most: int) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise UserError(f"The field {name} must be a text of at most {most} characters.")
    return value


def _lock(value: Any) -> Lock:
    if not isinstance(value, dict) or value.keys() not in ({"at", "token"}, {"at", "text"}):
        raise UserError("A lock has a position (at) and either a token or a text.")
    at = _whole(value["at"], "at", 0, MOST_TOKENS)
    if "token" in value:
        return Lock(at, token=_whole(value["token"], "token", 0, 2**31))
    return Lock(at, text=_text(value["text"], "text", MOST_PROMPT))


@dataclass(frozen=True)
class Fixed:
    """What the locks and the prompt of a wish come to: which positions are known, and as what."""

    known: Positions
    tokens: Tokens


def fixed(wish: Wish, model: Model, tokenizer: Tokenizer) -> Fixed | None:
    """The known positions of a wish, or None if there are none."""
    if wish.n * model.length > MOST_TOKENS:
        raise UserError(f"The studio writes at most {MOST_TOKENS} tokens at once; ask for fewer texts.")
    if wish.n * model.length * wish.steps > MOST_SHOWN:
        raise UserError(f"The studio shows at most {MOST_SHOWN} tokens over all steps; ask for fewer texts or steps.")
    known, tokens = torch.zeros(model.length, dtype=torch.bool), torch.zeros(model.length, dtype=torch.long)
    if wish.prompt:
        given = encode_prompt(wish.prompt, tokenizer, model.length)
        known, tokens = given.known, given.tokens
    for lock in wish.locks:
        ids = [lock.token] if lock.token is not None else tokenizer.encode(lock.text or "").tolist()
        if lock.at + len(ids) > model.length:
            raise UserError(f"This model writes {model.length} tokens; a lock reaches beyond them.")
        if max(ids, default=0) >= model.vocab_size:
            raise UserError(f"Tokens must be numbers from 0 to {model.vocab_size - 1}.")
        known[lock.at : lock.at + len(ids)] = True
        tokens[lock.at : lock.at + len(ids)] = torch.tensor(ids, dtype=torch.long)
    if not known.any():
        return None
    if known.all():
        raise UserError("Every position is locked, so there is nothing to write; unlock some.")
    model.check_known(known)
    return Fixed(known[None], tokens[None])


def as_command(wish: Wish, name: str, held: Fixed | None, tokenizer: Tokenizer) -> str:
    """The wish as a command line."""
    words = ["logosphere", "sample", name, "-n", str(wish.n), "--steps", str(wish.steps), "--seed", str(wish.seed)]
    if wish.sampler != "auto":
        words += ["--sampler", wish.sampler]
    if wish.temperature != 1:
        words += ["--temperature", f"{wish.temperature:g}"]
    if wish.top_p != 1:
        words += ["--top-p", f"{wish.top_p:g}"]
    if held is not None and wish.locks:
        words += ["--infill", with_gaps(held, tokenizer)]
    elif wish.prompt:
        words += ["--prompt", wish.prompt]
    return shlex.join(words)


def with_gaps(held: Fixed, tokenizer: Tokenizer) -> str:
    """Known text with gaps such as [12], as `logosphere sample --infill` reads it; an open end needs no gap."""
    known, tokens = held.known[0].tolist(), held.tokens[0].tolist()
    parts, start = [], 0
    while start < len(known):
        end = start
        while end < len(known) and known[end] == known[start]:
            end += 1
        if known[start]:
            parts.append(tokenizer.decode(tokens[start:end]))
        elif end < len(known):
            parts.append(f"[{end - start}]")
        start = end
    return "".join(parts)


def as_python(wish: Wish, name: str, held: Fixed | None) -> str:
    """The wish as Python."""
    lines = [
        "import torch",
        "import logosphere as ls",
        "from logosphere.runs.run import Run",
        "from logosphere.sampling.samplers import sampler",
        "",
        f"run = Run({name!r})",
        "model = run.model()",
    ]
    more = ""
    if held is not None:
        places = [i for i, known in enumerate(held.known[0].tolist()) if known]
        lines += [
            f"places = {places}",
            "known, tokens = torch.zeros(model.length, dtype=torch.bool), torch.zeros(model.length, dtype=torch.long)",
            f"known[places], tokens[places] = True, torch.tensor({held.tokens[0][places].tolist()})",
        ]
        more = "\n    known=known, tokens=tokens, renoise_known=run.approximates(model),"
    way = "model.sampler" if wish.sampler == "auto" else repr(wish.sampler)
    lines += [
        "drawn = ls.generate(",
        f"    model, n={wish.n}, steps={wish.steps}, rng=torch.Generator(model.device).manual_seed({wish.seed}),",
        f"    sampler=sampler({way}, model), temperature={wish.temperature}, top_p={wish.top_p},{more}",
        ")",
        "for row in drawn.tokens.cpu().numpy():",
        "    print(run.tokenizer.decode(row))",
    ]
    return "\n".join(lines) + "\n"
