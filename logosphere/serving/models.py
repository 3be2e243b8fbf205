"""The models that are served, by name: a run's folder or a bundled checkpoint, with its defaults."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from logosphere.data.tokenizers import Tokenizer
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.parallel.process_group import find_device
from logosphere.pretrained import PREFIX, RECORD, default_pretrained, sampling_defaults
from logosphere.runs.run import Run
from logosphere.sampling.layout import generates_parts
from logosphere.serving.errors import APIError


@dataclass(frozen=True)
class ServedModel:
    """A model in memory, and how it is sampled where a request does not say."""

    name: str
    """Its name in requests: that of its folder, which says nothing about other folders."""
    model: Model
    tokenizer: Tokenizer
    renoises: bool
    """Whether it was trained without known positions (`Run.needs_renoise`)."""
    sampler: str = "auto"
    temperature: float = 1.0
    precision: str = "float32"
    """Of the network; in bfloat16 a text depends a little on those that are sampled with it."""
    created: int = field(default_factory=lambda: int(time.time()))

    @staticmethod
    def load(place: str, precision: str = "float32") -> "ServedModel":
        """Load the weights of a run or of pretrained:NAME."""
        run = Run(place, trained=False)
        model = run.model().place(find_device(run.config.device))
        tokenizer = run.tokenizer
        is_export = (run.path / RECORD).exists()
        best = sampling_defaults(run.path.name)
        predicts = model.process.predicts_tokens
        return ServedModel(
            run.path.resolve().name, model, tokenizer, run.needs_renoise(model), best.sampler if is_export else "auto",
            best.temperature if is_export and predicts else 1.0, precision,
        )  # fmt: skip

    @property
    def generates_parts(self) -> bool:
        """Whether only a part of its positions is sampled: of published models, which have thousands."""
        return self.model.spec is not None and self.model.spec.published is not None and generates_parts(self.model)

    @property
    def chat_template(self) -> str | None:
        checkpoint = self.model.spec.checkpoint if self.model.spec is not None else None
        template = (checkpoint or {}).get("chat_template")
        return template if isinstance(template, str) else None


class Catalogue:
    """Models by name."""

    def __init__(self, models: Sequence[ServedModel]):
        self.models = {model.name: model for model in models}
        if len(self.models) < len(models):
            names = [model.name for model in models]
            twice = next(name for name in names if names.count(name) > 1)
            raise UserError(f"Two models are called {twice}, and requests choose a model by its name; rename a folder.")

    @staticmethod
    def load(places: Sequence[str | Path], precision: str = "float32") -> "Catalogue":
        """Load the models of these places; without any, the bundled ones for new texts and for gaps."""
        return Catalogue([ServedModel.load(str(place), precision) for place in places or default_places()])

    def find(self, name: str) -> ServedModel:
        """The model of a request, also by the name that the command line has for a bundled one."""
        found = self.models.get(name) or self.models.get(name.removeprefix(PREFIX))
        if found is None:
            served = ", ".join(self.models)
            raise APIError(
                f"The model {name[:80]!r} does not exist here; served are: {served}.",
                404,
                param="model",
                code="model_not_found",
            )
        return found


def default_places() -> list[str]:
    """The bundled checkpoints for new texts and for gaps."""
    folders = [folder for infilling in (False, True) if (folder := default_pretrained(infilling)) is not None]
    if not folders:
        raise UserError("This installation has no bundled checkpoints; name a run: logosphere serve RUN")
    return list(dict.fromkeys(f"{PREFIX}{folder.name}" for folder in folders))
