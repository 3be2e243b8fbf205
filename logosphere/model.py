"""Model: a process, and the denoiser that is trained to reverse it."""

from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from logosphere.codecs.tokens import TokenCodec
from logosphere.errors import UserError, check_count, shorten
from logosphere.inputs import BatchLike, IdsLike, SequenceFormat, as_mask
from logosphere.io import write_model
from logosphere.networks.base import Denoiser, check_block
from logosphere.networks.own import ModuleDenoiser, as_denoiser
from logosphere.networks.placement import network_device, place_network, unplace_network
from logosphere.networks.precision import has_float64
from logosphere.networks.published.lora import merged_state
from logosphere.networks.self_conditioning import bound_by_group
from logosphere.plugins import is_outside, place_of
from logosphere.processes.base import Process
from logosphere.processes.bound import bounds, leave_one_out_bound, mean_bound, mixture_bound
from logosphere.processes.capabilities import LearnedCodec, LearnedForward, MixtureOfPaths, SeveralPaths
from logosphere.rng import GeneratorNoise, Noise, as_generator
from logosphere.types import (
    Batch,
    Bool,
    Bound,
    Condition,
    Float,
    Positions,
    Predict,
    State,
    TextTokenizer,
    Times,
    Tokens,
    check_condition,
)


@dataclass(frozen=True)
class Spec:
    """All that is needed to build a model again, except its weights."""

    system: str
    vocab_size: int
    length: int
    options: dict[str, Any] = field(default_factory=dict)
    """All options that differ from the defaults, those of the preset among them."""
    preset: str = "default"
    published: dict[str, Any] | None = None
    """The network of a published checkpoint (networks/published/config.py); None for networks of the package."""
    checkpoint: dict[str, Any] | None = None
    """Where a published checkpoint comes from: source, sha256 of its files, special tokens, chat template, licence."""
    adapters: dict[str, Any] | None = None
    """Adapters of a published network (networks/published/lora.py); their base weights are in another file."""

    @property
    def published_size(self) -> dict[str, Any]:
        """Width, depth and heads of a published network, by the names of options; empty for others."""
        return {name: self.published.get(name) for name in ("width", "depth", "heads")} if self.published else {}

    def special_token(self, name: str) -> int | None:
        """The id of bos, eos, … of a published checkpoint, where it has one that is a token of the model."""
        special = (self.checkpoint or {}).get("special")
        token = special.get(name) if isinstance(special, dict) else None
        return token if type(token) is int and 0 <= token < self.vocab_size else None

    def content(self) -> dict[str, Any]:
        """For recipe.json."""
        content = asdict(self)
        for part in ("published", "checkpoint", "adapters"):
            if content[part] is None:
                del content[part]
        return content


class Model(nn.Module):
    """A process with its denoiser. It is trained, evaluated and sampled in the same way for every process."""

    def __init__(
        self, process: Process, denoiser: nn.Module | None, *, length: int, block: int, spec: Spec | None = None
    ):
        super().__init__()
        check_block(length, block)
        self.process = process
        self.denoiser = None if denoiser is None else as_denoiser(denoiser, process, length, block)
        self.length, self.block, self.spec = length, block, spec
        self.vocab_size = process.codec.vocab_size
        self.remasker: nn.Module | None = None  # predicts which tokens are wrong, for the sampler of G-Star
        self.sampler = "ancestral"  # the name of the sampler that belongs to the system
        self.own_denoiser = False  # whether the denoiser was given, so that the recipe does not describe it
        self.plugins: dict[str, str] = {}  # parts of the recipe from outside of the package, and what builds them
        self._tokenizer: TextTokenizer | None = None
        self.anchor: Tensor
        self.register_buffer("anchor", torch.empty(0), persistent=False)  # has the device of models without weights

    @property
    def device(self) -> torch.device:
        """Where states, noise and bounds are computed."""
        return self.anchor.device

    @property
    def network_device(self) -> torch.device:
        """Where the network computes, which has a device of its own if that has no 64-bit floating point."""
        return network_device(self.denoiser) or self.device

    def place(self, device: torch.device | str) -> "Model":
        """Move the model to a device and return it.

        To a device without 64-bit floating point, such as Apple's GPUs (mps), only the network moves; states, noise and
        bounds stay on the CPU.
        """
        device = torch.device(device)
        if self.denoiser is not None and network_device(self.denoiser) is not None:
            self.denoiser = unplace_network(self.denoiser).train(self.training)
        if has_float64(device):
            return self.to(device)
        self.to("cpu")
        if self.denoiser is not None:
            self.denoiser = place_network(self.denoiser, device)
        return self

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """What maps texts to tokens and back; it is saved with the model."""
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: TextTokenizer | None) -> None:
        if tokenizer is not None and not isinstance(tokenizer, TextTokenizer):
            raise UserError(f"A tokenizer must come from ls.make_tokenizer or a corpus, not be {shorten(tokenizer)}.")
        if tokenizer is not None and tokenizer.size != self.vocab_size:
            raise UserError(
                f"This model has {self.vocab_size} tokens and the tokenizer {tokenizer.size}; build the model with "
                f"vocab_size={tokenizer.size}, or give another tokenizer."
            )
        self._tokenizer = tokenizer

    @property
    def sequence_format(self) -> SequenceFormat:
        """The sequences that this model takes, for what users pass as batches."""
        return SequenceFormat(self.length, self.vocab_size, self.tokenizer, self.process.codec.local)

    def special_token(self, name: str) -> int | None:
        """The id of bos, eos, … of a published checkpoint, where it has one that is a token of the model."""
        return None if self.spec is None else self.spec.special_token(name)

    def check_savable(self) -> None:
        """Raise UserError for a model that could not be loaded again, so that nothing is trained in vain."""
        if self.spec is None:
            raise UserError("Only models made by build(…) can be saved; this one was made in another way.")
        denoiser = self.denoiser
        if denoiser is None:
            raise UserError("This model has no denoiser, so there is nothing to save: build it with a network.")
        if isinstance(denoiser, ModuleDenoiser) or self.spec.published is not None:
            return
        if self.own_denoiser or is_outside(place_of(type(denoiser))):
            raise UserError(
                f"The recipe cannot name the denoiser {type(denoiser).__name__} of this model, so it could not be "
                "saved: "
                "register the network with ls.register_network and build with body=NAME, or pass ls.wrap(module)."
            )

    def save(self, path: str | Path) -> None:
        """Write recipe.json (how to build the model), its weights and its tokenizer, if it has one, into a folder.

        Adapters are merged. A new folder appears complete or not at all; in an existing one, files are replaced one
        after another.
        """
        self.check_savable()
        assert self.spec is not None
        folder = Path(path)
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file, and a model is saved as a folder; give another path.")
        tokenizer = None if self.tokenizer is None else self.tokenizer.describe()
        content = {"model": replace(self.spec, adapters=None).content()} | self.describe_plugins()
        write_model(folder, merged_state(self), content, tokenizer)

    def push_to_hub(
        self, name: str, *, licence: str | None = None, private: bool = False, dry_run: bool = False
    ) -> dict[str, Any]:
        """Publish the model as OWNER/NAME on the hub, from where ls.load("hf:OWNER/NAME") loads it.

        Returns the files with their sizes, the card, the sha256 of the weights and the address of the commit; with
        `dry_run` nothing is uploaded. A card with likelihoods needs a run: `logosphere publish RUN hf:OWNER/NAME`.
        """
        publish = import_module("logosphere.runs.publish")  # of a later layer
        config = publish.CardConfig(licence)
        content: dict[str, Any] = publish.push_model(self, name, config, private=private, dry_run=dry_run).summary()
        return content

    def describe_plugins(self) -> dict[str, Any]:
        """The parts of this model from outside of the package, as recipe.json names them for errors."""
        parts = dict(self.plugins)
        if isinstance(self.denoiser, ModuleDenoiser) and not self.denoiser.registered:
            parts["denoiser"] = place_of(type(self.denoiser.module))
        return {"plugins": parts} if parts else {}

    def bound(self, batch: Batch, noise: Noise, draws: int = 1, predict: Predict | None = None) -> Bound:
        """The mean of `draws` draws of the bound, their times spread evenly over each sequence and the batch."""
        predict = self.denoiser if predict is None else predict
        if predict is None:
            raise UserError("This model has no denoiser: build it with one, or pass denoiser=….")
        if batch.tokens.shape[1] != self.length and self.block != self.length:
            raise UserError("A model that generates block by block is trained on whole sequences; use another task.")
        if batch.condition is not None:
            predict = bind_condition(predict, batch.condition)
        if batch.documents is not None and isinstance(predict, Denoiser):
            predict = predict.with_documents(batch.documents)
        if isinstance(predict, Denoiser) and not predict.answers_first:
            batch = batch.hold_first()
        if self.process.kind == "exact":
            draws = 1  # nothing is drawn
        trains = self.training and torch.is_grad_enabled()
        if isinstance(self.process, LearnedForward) and self.training and draws == 1:
            w = noise.low_discrepancy_times(1, self.length // self.block)[:, 0]
            return leave_one_out_bound(*bounds(self.process, predict, batch, [w, w], noise))
        if (
            self.training
            and draws == 1
            and isinstance(predict, Denoiser)
            and (every := predict.self_conditioning_period())
        ):
            w = noise.low_discrepancy_times(1, self.length // self.block)[:, 0]
            return bound_by_group(self.process, predict, batch, w, noise, every)
        # Training minimises the mean over the components, which one draw estimates as well as several.
        if isinstance(self.process, MixtureOfPaths) and self.process.num_components > 1 and draws > 1 and not trains:
            components = [self.process.select_component(index) for index in range(self.process.num_components)]
            first, second = (
                [self._draws(component, batch, noise, count, predict) for component in components]
                for count in (draws // 2, draws - draws // 2)
            )
            return mixture_bound(first, second)
        drawn = self._draws(self.process, batch, noise, draws, predict)
        return drawn[0] if draws == 1 else mean_bound(drawn)

    def _draws(self, process: Process, batch: Batch, noise: Noise, draws: int, predict: Predict) -> list[Bound]:
        if draws > 1 and self.block < self.length and isinstance(predict, Denoiser):
            predict = predict.with_context(process.codec.encode(batch.tokens))
        found = []
        for w in noise.low_discrepancy_times(draws, self.length // self.block).unbind(1):
            found += bounds(process, predict, batch, [w], noise)  # one after another: states of one draw are in memory
        return found

    def with_path(self, name: str) -> "Model":
        """The same model with bounds and samples along another path of its process; weights are shared."""
        if not isinstance(self.process, SeveralPaths):
            raise UserError(f"The process of this model has a single path; there is no path '{name}'.")
        return self.with_process(self.process.with_path(name))

    def with_process(self, process: Process) -> "Model":
        """The same model with another process of the same states and predictions; weights are shared."""
        model = Model(process, None, length=self.length, block=self.block, spec=self.spec)
        model.to(self.device)
        model.denoiser, model.remasker, model.sampler = self.denoiser, self.remasker, self.sampler
        model.tokenizer, model.own_denoiser, model.plugins = self.tokenizer, self.own_denoiser, self.plugins
        return model.train(self.training)

    def metrics(self) -> dict[str, float]:
        """Values of learned codecs and schedules to log during training."""
        return self.process.metrics() if isinstance(self.process, LearnedCodec) else {}

    def nelbo(
        self,
        tokens: BatchLike,
        rng: torch.Generator | int,
        denoiser: Predict | nn.Module | None = None,
        draws: int = 1,
        known: IdsLike | None = None,
        condition: Condition | None = None,
    ) -> Bound:
        """An unbiased estimate of the bound on -log p(tokens | known tokens, condition), nats per sequence.

        `tokens` are ids [B, L], texts, a dictionary with input_ids, or a Batch (inputs.py); `rng` may be a seed.
        """
        batch, draws = self.read(tokens, known, condition), check_count("The number of draws", draws)
        self.check_known(batch.known)
        noise = GeneratorNoise(as_generator(rng, batch.tokens.device), len(batch))
        with torch.no_grad():
            return self.bound(batch, noise, draws, self.as_predict(denoiser))

    def corrupt(self, tokens: BatchLike, t: Float[Tensor, "..."] | float, rng: torch.Generator | int) -> State:
        """A draw of the states at times t, [B, L] or anything that expands to it; `tokens` as for `nelbo`."""
        x = self.read(tokens).tokens
        t, u = _expand_times(t, x), self.process.codec.encode(x)
        noise = GeneratorNoise(as_generator(rng, x.device), len(x))
        return self.process.corrupt(u, self.process.codec.expand_to_states(t), noise)

    @torch.no_grad()
    def log_posterior(
        self,
        z: State,
        t: Float[Tensor, "..."] | float,
        denoiser: Predict | nn.Module | None = None,
        condition: Condition | None = None,
    ) -> Float[Tensor, "B L V"]:
        """log p(x_i = k | z_t) of every position and token, normalised, for states z [B, L] or [B, L, d].

        Discrete states are token ids, and the mask is `vocab_size`. Blocks see clean states of earlier blocks, which
        z must then hold. Models whose states are not those of single tokens have no such posterior.
        """
        predict = self.denoiser if denoiser is None else self.as_predict(denoiser)
        if predict is None:
            raise UserError("This model has no denoiser: build it with one, or pass denoiser=….")
        codec = self.process.codec
        if not isinstance(z, Tensor) or z.dim() != (2 if codec.is_discrete else 3):
            raise UserError(f"States must be a tensor as `corrupt` returns it, not {shorten(z)}.")
        maskless = isinstance(codec, TokenCodec) and codec.mask is None
        most = self.vocab_size - 1 if maskless else self.vocab_size
        if codec.is_discrete and (z.is_floating_point() or bool(((z < 0) | (z > most)).any())):
            mask = ", for it has no mask" if maskless else f", or {self.vocab_size} for the mask"
            raise UserError(
                f"States of this model are token ids from 0 to {self.vocab_size - 1}{mask}, not {shorten(z)}."
            )
        if not codec.local or codec.num_classes != self.vocab_size or z.shape[1] != self.length:
            raise UserError(
                f"There is a posterior of each token only where every token has a state of its own; this model of "
                f"{self.vocab_size} tokens and length {self.length} has states of another kind, or z (of shape "
                f"{list(z.shape)}) has another length."
            )
        predict = predict if condition is None else bind_condition(predict, condition)
        t = _expand_times(t, z[..., 0] if z.dim() == 3 else z)
        return self.process.log_posterior(predict(z, t, context=z), z, t)

    def can_see(self, known: Bool[Tensor, "... L"]) -> bool:
        """Whether every free position attends to every known one. A model of blocks does not attend to later blocks."""
        known = torch.atleast_2d(known)
        blocks = torch.arange(known.shape[1], device=known.device) // self.block
        first_free = torch.where(known, self.length, blocks).amin(1)
        last_known = torch.where(known, blocks, -1).amax(1)
        return self.process.codec.local and bool((last_known <= first_free).all())

    def check_known(self, known: Bool[Tensor, "... L"]) -> None:
        if not bool(known.any()):
            return
        if not self.process.codec.local:
            raise UserError("The states of this model belong to whole sequences, so no positions can be held fixed.")
        if not self.can_see(known):
            raise UserError(
                "This model generates from left to right and cannot be conditioned on later tokens; "
                "give only a prompt at the start, or use a diffusion model such as mdlm for infilling."
            )

    def as_predict(self, given: Predict | nn.Module | None) -> Predict | None:
        """What users pass as denoiser=…: a module is wrapped, a function is taken as it is."""
        if isinstance(given, nn.Module):
            return as_denoiser(given, self.process, self.length, self.block)
        if given is not None and not callable(given):
            raise UserError(f"A denoiser must be a network or a function (z, t, context, where), not {shorten(given)}.")
        return given

    def read(self, given: BatchLike, known: IdsLike | None = None, condition: Condition | None = None) -> Batch:
        """What users pass as sequences, which must have the length and the vocabulary of this model, as a Batch."""
        batch = self.sequence_format.read(given)
        self.sequence_format.check_ids(batch.tokens)
        self.check_vocabulary(batch.tokens)
        if known is not None:
            batch = replace(batch, known=_as_positions(known, batch), all_free=False)
        if condition is None:
            return batch
        check_condition(condition, len(batch))
        return replace(batch, condition=condition)

    def check_vocabulary(self, tokens: Tokens) -> None:
        """Raise UserError for ids outside the vocabulary, among them that of the mask."""
        low, high = (int(tokens.min()), int(tokens.max())) if tokens.numel() else (0, 0)
        if low < 0 or high >= self.vocab_size:
            raise UserError(
                f"Tokens must be numbers from 0 to {self.vocab_size - 1}, not {low if low < 0 else high}; the "
                "mask is not a token of the data."
            )


def _expand_times(t: Float[Tensor, "..."] | float, like: Tensor) -> Times:
    """Times in the shape [B, L] of `like`."""
    try:
        t = torch.as_tensor(t, dtype=torch.float32, device=like.device).expand(like.shape)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(
            f"Times must be a number or a tensor [B, L] with {list(like.shape)}, not {shorten(t)}."
        ) from None
    if not bool(((t >= 0) & (t <= 1)).all()):
        raise UserError("Times must lie between 0 (data) and 1 (noise).")
    return t


def _as_positions(known: object, batch: Batch) -> Positions:
    """Known positions of a batch: [B, L], or [L] for all of its sequences."""
    mask, shape = as_mask(known, "known").to(batch.tokens.device), batch.tokens.shape
    if mask.shape not in (shape, shape[1:]):
        raise UserError(f"known must have the shape {list(shape)} of the tokens, not {list(mask.shape)}.")
    return mask.expand(shape)


def bind_condition(predict: Predict, condition: Condition) -> Predict:
    """Return a denoiser with a condition bound to it; other functions are assumed to have it already."""
    return predict.with_condition(condition) if isinstance(predict, Denoiser) else predict
