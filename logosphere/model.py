"""Model: a process, and the denoiser that is trained to reverse it."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from logosphere.errors import UserError
from logosphere.io import RECIPE, WEIGHTS, write_recipe, write_tensors
from logosphere.networks.base import Denoiser, check_block
from logosphere.networks.self_conditioning import bound_by_group
from logosphere.processes.base import Process
from logosphere.processes.bound import bounds, leave_one_out_bound, mean_bound, mixture_bound
from logosphere.processes.capabilities import LearnedCodec, LearnedForward, MixtureOfPaths, SeveralPaths
from logosphere.rng import GeneratorNoise, Noise, as_generator
from logosphere.types import Batch, Bool, Bound, Condition, Float, Positions, Predict, State, Times, Tokens


@dataclass(frozen=True)
class Spec:
    """All that is needed to build a model again, except its weights."""

    system: str
    vocab_size: int
    length: int
    options: dict[str, Any] = field(default_factory=dict)
    """All options that differ from the defaults, those of the preset among them."""
    preset: str = "default"


class Model(nn.Module):
    """A process with its denoiser. It is trained, evaluated and sampled in the same way for every process."""

    def __init__(
        self, process: Process, denoiser: Denoiser | None, *, length: int, block: int, spec: Spec | None = None
    ):
        super().__init__()
        check_block(length, block)
        self.process, self.denoiser = process, denoiser
        self.length, self.block, self.spec = length, block, spec
        self.vocab_size = process.codec.vocab_size
        self.remasker: nn.Module | None = None  # predicts which tokens are wrong, for the sampler of G-Star
        self.sampler = "ancestral"  # the name of the sampler that belongs to the system
        self.anchor: Tensor
        self.register_buffer("anchor", torch.empty(0), persistent=False)  # has the device of models without weights

    @property
    def device(self) -> torch.device:
        return self.anchor.device

    def save(self, path: str | Path) -> None:
        """Write recipe.json (how to build the model) and model.safetensors (its weights) into a folder."""
        if self.spec is None:
            raise UserError("Only models made by build(…) can be saved; this one was made in another way.")
        write_tensors(Path(path) / WEIGHTS, self.state_dict())
        write_recipe(Path(path) / RECIPE, {"model": asdict(self.spec)})

    def bound(self, batch: Batch, noise: Noise, draws: int = 1, predict: Predict | None = None) -> Bound:
        """The mean of `draws` draws of the bound, their times spread evenly over each sequence and the batch."""
        predict = self.denoiser if predict is None else predict
        if predict is None:
            raise UserError("This model has no denoiser: build it with one, or pass denoiser=….")
        if batch.tokens.shape[1] != self.length and self.block != self.length:
            raise UserError("A model that generates block by block is trained on whole sequences; use another task.")
        if batch.condition is not None:
            predict = bind_condition(predict, batch.condition)
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
        model = Model(self.process.with_path(name), self.denoiser, length=self.length, block=self.block, spec=self.spec)
        model.remasker, model.sampler = self.remasker, self.sampler
        return model.to(self.device).train(self.training)

    def metrics(self) -> dict[str, float]:
        """Values of learned codecs and schedules to log during training."""
        return self.process.metrics() if isinstance(self.process, LearnedCodec) else {}

    def nelbo(
        self,
        tokens: Tokens,
        rng: torch.Generator | int,
        denoiser: Predict | None = None,
        draws: int = 1,
        known: Positions | None = None,
        condition: Condition | None = None,
    ) -> Bound:
        """An unbiased estimate of the bound on -log p(tokens | known tokens, condition), nats per sequence."""
        self._check_tokens(tokens)
        if known is not None:
            self.check_known(known)
        noise = GeneratorNoise(as_generator(rng, tokens.device), len(tokens))
        with torch.no_grad():
            return self.bound(Batch.of(tokens, known, condition=condition), noise, draws, denoiser)

    def corrupt(self, tokens: Tokens, t: Float[Tensor, "..."] | float, rng: torch.Generator | int) -> State:
        """A draw of the states at times t, [B, L] or anything that expands to it."""
        self._check_tokens(tokens)
        t, u = _expand_times(t, tokens), self.process.codec.encode(tokens)
        noise = GeneratorNoise(as_generator(rng, tokens.device), len(tokens))
        return self.process.corrupt(u, self.process.codec.expand_to_states(t), noise)

    @torch.no_grad()
    def log_posterior(
        self,
        z: State,
        t: Float[Tensor, "..."] | float,
        denoiser: Predict | None = None,
        condition: Condition | None = None,
    ) -> Float[Tensor, "B L V"]:
        """log p(x_i = k | z_t) of every position and token, normalised, for states z [B, L] or [B, L, d].

        Discrete states are token ids, and the mask is `vocab_size`. Blocks see clean states of earlier blocks, which
        z must then hold. Models whose states are not those of single tokens have no such posterior.
        """
        predict = self.denoiser if denoiser is None else denoiser
        if predict is None:
            raise UserError("This model has no denoiser: build it with one, or pass denoiser=….")
        codec = self.process.codec
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

    def _check_tokens(self, tokens: Tokens) -> None:
        if tokens.shape[1] != self.length:
            raise UserError(f"This model has sequences of {self.length} tokens, not {tokens.shape[1]}.")
        self.check_vocabulary(tokens)

    def check_vocabulary(self, tokens: Tokens) -> None:
        """Raise UserError for ids outside the vocabulary, among them that of the mask."""
        if tokens.numel() and not (0 <= int(tokens.min()) and int(tokens.max()) < self.vocab_size):
            raise UserError(
                f"Tokens must be numbers from 0 to {self.vocab_size - 1}; the mask is not a token of the data."
            )


def _expand_times(t: Float[Tensor, "..."] | float, like: Tensor) -> Times:
    """Times in the shape [B, L] of `like`."""
    t = torch.as_tensor(t, dtype=torch.float32, device=like.device).expand(like.shape)
    if bool(((t < 0) | (t > 1)).any()):
        raise UserError("Times must lie between 0 (data) and 1 (noise).")
    return t


def bind_condition(predict: Predict, condition: Condition) -> Predict:
    """Return a denoiser with a condition bound to it; other functions are assumed to have it already."""
    return predict.with_condition(condition) if isinstance(predict, Denoiser) else predict
