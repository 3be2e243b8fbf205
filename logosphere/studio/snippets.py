"""A request as a command line and as Python code; both generate the same texts as the studio."""

import shlex

from logosphere.data.tokenizers import Tokenizer
from logosphere.studio.requests import GenerateRequest, PinnedPositions


def to_command(request: GenerateRequest, name: str, pinned: PinnedPositions | None, tokenizer: Tokenizer) -> str:
    """Return the command line of a request to the model `name`."""
    argv = ["logosphere", "sample", name]
    argv += ["-n", str(request.n), "--steps", str(request.steps), "--seed", str(request.seed)]
    if request.sampler != "auto":
        argv += ["--sampler", request.sampler]
    if request.temperature != 1:
        argv += ["--temperature", f"{request.temperature:g}"]
    if request.top_p != 1:
        argv += ["--top-p", f"{request.top_p:g}"]
    if pinned is not None and request.pins:
        argv += ["--infill", to_infill(pinned, tokenizer)]
    elif request.prompt:
        argv += ["--prompt", request.prompt]
    return shlex.join(argv)


def to_infill(pinned: PinnedPositions, tokenizer: Tokenizer) -> str:
    """Return known text with gaps such as [12], as `logosphere sample --infill` reads it; the last gap is left out."""
    known, tokens = pinned.known[0].tolist(), pinned.tokens[0].tolist()
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


def to_python(request: GenerateRequest, name: str, pinned: PinnedPositions | None) -> str:
    """Return the Python code of a request to the model `name`."""
    lines = [
        "import torch",
        "import logosphere as ls",
        "from logosphere.runs.run import Run",
        "from logosphere.sampling.registry import sampler",
        "",
        f"run = Run({name!r})",
        "model = run.model()",
    ]
    more = ""
    if pinned is not None:
        places = [i for i, known in enumerate(pinned.known[0].tolist()) if known]
        lines += [
            f"places = {places}",
            "known, tokens = torch.zeros(model.length, dtype=torch.bool), torch.zeros(model.length, dtype=torch.long)",
            f"known[places], tokens[places] = True, torch.tensor({pinned.tokens[0][places].tolist()})",
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
