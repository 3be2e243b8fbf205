"""Requests of the page to generate texts, checked and limited in size, and the same as command line and Python code."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from logosphere.data.tokenizers import Prompt, Tokenizer, encode_infill, encode_prompt
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.sampling.published import start_token
from logosphere.sampling.registry import sampler_info
from logosphere.terminal import quote_command
from logosphere.types import Positions, Tokens

MAX_STEPS, MAX_TEXTS, MAX_PROMPT, MAX_TOKENS = 1024, 8, 4000, 16384
MAX_TOKEN_STEPS = 1 << 22
"""Tokens over all steps, which a job keeps for its viewers."""
SEEDS = 2**31
FIELDS = {"system", "n", "steps", "prompt", "holds", "sampler", "temperature", "top_p", "seed"}


@dataclass(frozen=True)
class HeldToken:
    """A held position: a token, or a text that begins there."""

    at: int
    token: int | None = None
    text: str | None = None


@dataclass(frozen=True)
class GenerateRequest:
    """A request to generate texts."""

    system: int
    """The number of the model."""
    n: int = 1
    steps: int = 64
    prompt: str = ""
    holds: tuple[HeldToken, ...] = ()
    sampler: str = "auto"
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0

    @staticmethod
    def parse(content: Any, systems: int) -> "GenerateRequest":
        """Check the JSON content of a request to a studio with so many models."""
        if not isinstance(content, dict) or not content.keys() <= FIELDS:
            raise UserError(f"A request is an object with some of the fields {', '.join(sorted(FIELDS))}.")
        name = _parse_text(content.get("sampler", "auto"), "sampler", 40)
        if name != "auto":
            sampler_info(name)
        holds = content.get("holds", [])
        if not isinstance(holds, list) or len(holds) > MAX_TOKENS:
            raise UserError(f"The field holds must be a list of at most {MAX_TOKENS} positions.")
        return GenerateRequest(
            system=_parse_int(content.get("system"), "system", 0, systems - 1),
            n=_parse_int(content.get("n", 1), "n", 1, MAX_TEXTS),
            steps=_parse_int(content.get("steps", 64), "steps", 1, MAX_STEPS),
            prompt=_parse_text(content.get("prompt", ""), "prompt", MAX_PROMPT),
            holds=tuple(_parse_hold(hold) for hold in holds),
            sampler=name,
            temperature=_parse_float(content.get("temperature", 1.0), "temperature", 0.01, 10.0),
            top_p=_parse_float(content.get("top_p", 1.0), "top_p", 0.01, 1.0),
            seed=_parse_int(content.get("seed", 0), "seed", 0, SEEDS - 1),
        )


def _parse_int(value: Any, name: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise UserError(f"The field {name} must be a whole number from {low} to {high}.")
    return value


def _parse_float(value: Any, name: str, low: float, high: float) -> float:
    if type(value) not in (int, float) or not low <= value <= high:
        raise UserError(f"The field {name} must be a number from {low:g} to {high:g}.")
    return float(value)


def _parse_text(value: Any, name: str, limit: int) -> str:
    if not isinstance(value, str) or len(value) > limit:
        raise UserError(f"The field {name} must be a text of at most {limit} characters.")
    return value


def _parse_hold(value: Any) -> HeldToken:
    if not isinstance(value, dict) or value.keys() not in ({"at", "token"}, {"at", "text"}):
        raise UserError("A hold has a position (at) and either a token or a text.")
    at = _parse_int(value["at"], "at", 0, MAX_TOKENS)
    if "token" in value:
        return HeldToken(at, token=_parse_int(value["token"], "token", 0, 2**31))
    return HeldToken(at, text=_parse_text(value["text"], "text", MAX_PROMPT))


@dataclass(frozen=True)
class HeldPositions:
    """The known positions of a request and their tokens, each [1, L]."""

    known: Positions
    tokens: Tokens
    prompt: int = 0
    """Tokens of the prompt, which are the first positions."""
    released: tuple[int, ...] = ()
    """Held positions of the request that the prompt takes."""

    @property
    def places(self) -> list[int]:
        return [place for place, known in enumerate(self.known[0].tolist()) if known]

    def equals(self, prompt: Prompt) -> bool:
        """Whether these are the positions and tokens of a prompt."""
        same = self.known[0] == prompt.known
        return bool(same.all()) and bool((self.tokens[0] == prompt.tokens)[prompt.known].all())


def resolve_holds(request: GenerateRequest, model: Model, tokenizer: Tokenizer) -> HeldPositions | None:
    """Combine the prompt and the held tokens of a request; return None if there are none.

    The prompt takes its positions: tokens that were held there before it was typed are released.
    """
    if request.n * model.length > MAX_TOKENS:
        count = request.n * model.length
        raise UserError(f"The studio generates at most {MAX_TOKENS} tokens at once, not {count}; request fewer texts.")
    if request.n * model.length * request.steps > MAX_TOKEN_STEPS:
        limit = f"at most {MAX_TOKEN_STEPS} tokens over all steps"
        raise UserError(f"The studio shows {limit}; request fewer texts or steps.")
    known, tokens = torch.zeros(model.length, dtype=torch.bool), torch.zeros(model.length, dtype=torch.long)
    if request.prompt:
        given = encode_prompt(request.prompt, tokenizer, model.length, start_token(model))
        known, tokens = given.known.clone(), given.tokens.clone()
    prompt, released = int(known.sum()), list[int]()
    for hold in request.holds:
        ids = [hold.token] if hold.token is not None else tokenizer.encode(hold.text or "").tolist()
        if hold.at + len(ids) > model.length:
            raise UserError(f"This model generates {model.length} tokens; a held token lies beyond them.")
        if max(ids, default=0) >= model.vocab_size:
            raise UserError(f"Tokens must be numbers from 0 to {model.vocab_size - 1}.")
        for place, token in enumerate(ids, hold.at):
            if place < prompt:
                released.append(place)
            else:
                known[place], tokens[place] = True, token
    if not known.any():
        return None
    if known.all():
        raise UserError("Every position is held, so there is nothing to generate; release some.")
    model.check_known(known)
    return HeldPositions(known[None], tokens[None], prompt, tuple(released))


def to_command(request: GenerateRequest, name: str, held: HeldPositions | None, tokenizer: Tokenizer) -> str:
    """Return the command line of a request to the model `name`."""
    argv = ["logosphere", "sample", name, "--precision", "float32"]  # as the studio computes
    argv += ["-n", str(request.n), "--steps", str(request.steps), "--seed", str(request.seed)]
    if request.sampler != "auto":
        argv += ["--sampler", request.sampler]
    if request.temperature != 1:
        argv += ["--temperature", repr(request.temperature)]
    if request.top_p != 1:
        argv += ["--top-p", repr(request.top_p)]
    if held is not None:
        argv += _known_arguments(request, held, tokenizer)
    return quote_command(argv)


def _known_arguments(request: GenerateRequest, held: HeldPositions, tokenizer: Tokenizer) -> list[str]:
    """The known positions as text where the command line reads the same tokens from it, else as token numbers."""
    ways: list[tuple[str, str, Callable[[str, Tokenizer, int], Prompt]]] = [
        ("--prompt", request.prompt, encode_prompt),
        ("--infill", to_infill(held, tokenizer), encode_infill),
    ]
    for option, text, encode in ways:
        if text and "\0" not in text and _is_read_as(held, text, encode, tokenizer):
            return [f"{option}={text}"] if text.startswith("-") else [option, text]
    return ["--hold", to_hold(held)]


def _is_read_as(
    held: HeldPositions, text: str, encode: Callable[[str, Tokenizer, int], Prompt], tokenizer: Tokenizer
) -> bool:
    try:
        return held.equals(encode(text, tokenizer, held.known.shape[1]))
    except UserError:
        return False  # such as a text with brackets, which is read as a gap beyond the end


def to_hold(held: HeldPositions) -> str:
    """Return known positions such as 0:17,4 12:33, as `logosphere sample --hold` reads them."""
    runs, tokens = list[tuple[int, list[str]]](), held.tokens[0].tolist()
    for place in held.places:
        if runs and runs[-1][0] + len(runs[-1][1]) == place:
            runs[-1][1].append(str(tokens[place]))
        else:
            runs.append((place, [str(tokens[place])]))
    return " ".join(f"{start}:{','.join(ids)}" for start, ids in runs)


def to_infill(held: HeldPositions, tokenizer: Tokenizer) -> str:
    """Return known text with gaps such as [12], as `logosphere sample --infill` reads it; the last gap is left out."""
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


def to_python(request: GenerateRequest, name: str, held: HeldPositions | None) -> str:
    """Return the Python code of a request to the model `name`."""
    lines = [
        "import torch",
        "import logosphere as ls",
        "from logosphere.runs.run import Run",
        "from logosphere.sampling.registry import sampler",
        "",
        f"run = Run({name!r}, trained=False)",
        "model = run.model()",
    ]
    more = ""
    if held is not None:
        places = held.places
        lines += [
            f"places = {places}",
            "known, tokens = torch.zeros(model.length, dtype=torch.bool), torch.zeros(model.length, dtype=torch.long)",
            f"known[places], tokens[places] = True, torch.tensor({held.tokens[0][places].tolist()})",
        ]
        more = "\n    known=known, tokens=tokens, renoise_known=run.needs_renoise(model),"
    chosen = "model.sampler" if request.sampler == "auto" else repr(request.sampler)
    rng = f"torch.Generator(model.device).manual_seed({request.seed})"
    lines += [
        "drawn = ls.generate(",
        f"    model, n={request.n}, steps={request.steps}, rng={rng},",
        f"    sampler=sampler({chosen}, model), temperature={request.temperature}, top_p={request.top_p},{more}",
        ")",
        "for row in drawn.tokens.cpu().numpy():",
        "    print(run.tokenizer.decode(row))",
    ]
    return "\n".join(lines) + "\n"
