"""What a constraint adds to `generate`: checks, a stepper around that of the sampler, and the choice of particles."""

import torch

from logosphere.codecs.base import Autoencoder
from logosphere.errors import UserError, check_count
from logosphere.model import Model
from logosphere.rng import Noise
from logosphere.sampling.steppers.base import Ancestral, GreedyLastStep, Stepper
from logosphere.sampling.structured.constraint import Constraint
from logosphere.sampling.structured.particles import ParticleStepper, choose_particles
from logosphere.sampling.structured.stepper import ConstrainedStepper, ConstraintRun, as_constrained
from logosphere.types import Batch, Condition, State, Tokens

MAX_PARTICLES = 1024


class ConstrainedGeneration:
    """A constraint on all sequences of a run; the rows of its batch are the particles of each sequence."""

    def __init__(self, constraint: object, particles: int, model: Model, batch: Batch, length: int):
        """`length`: positions that are returned."""
        if not isinstance(constraint, Constraint):
            raise UserError("constraint must be made by ls.constrain(model, match=… or json_schema=…).")
        self.particles = check_count("The number of particles", particles)
        if particles > MAX_PARTICLES:
            raise UserError(f"A text has at most {MAX_PARTICLES:,} particles, not {particles:,}.")
        self.constraint, self.process, self.length = constraint, model.process, length
        self.latent = isinstance(self.process.codec, Autoencoder)
        if len(constraint.automaton.token_class) != model.vocab_size:
            raise UserError(
                f"The constraint was made for a model of {len(constraint.automaton.token_class)} tokens and this one "
                f"has {model.vocab_size}; make it for this model."
            )
        if particles > 1 and not (self.latent or self.process.codec.is_discrete):
            raise UserError(
                "particles need states that are tokens, as in mdlm, udlm or ar, or latents; leave them out."
            )
        self.batch = constraint.fill_end(model, batch)
        constraint.check(self.batch, length)
        if particles > 1:
            tokens, known = self.batch.tokens, self.batch.known
            self.batch = Batch.of(tokens.repeat_interleave(particles, 0), known.repeat_interleave(particles, 0))
        self.whole = model.block == model.length
        self.stepper: ParticleStepper | None = None

    def repeat_condition(self, condition: Condition | None) -> Condition | None:
        """The condition of each particle."""
        if condition is None or self.particles == 1:
            return condition
        return condition.map(lambda field: field.repeat_interleave(self.particles, 0))

    def check(self, stepper: Stepper, *, guided: bool, watched: bool, alone: bool) -> None:
        """Raise UserError for a stepper, guidance or display that does not go together with the constraint."""
        if guided and (self.process.guides_transitions or self.latent):
            raise UserError(
                "Guidance acts on the transitions or the latents of this model, which a constraint on tokens does not "
                "go together with; leave one of them out, or use mdlm."
            )
        if self.particles == 1:
            return
        plain = stepper.inner if isinstance(stepper, GreedyLastStep) else stepper
        if not self.latent and (not isinstance(plain, Ancestral) or plain.guides or guided):
            raise UserError("particles need the sampler ancestral without guidance; leave out one of them.")
        if watched or not alone:
            raise UserError("particles are neither watched nor divided among processes; leave out one of them.")

    def apply(self, stepper: Stepper, batch: Batch) -> Stepper:
        """The stepper under the constraint, for the rows of this process."""
        if self.latent:
            return stepper
        run = ConstraintRun(self.constraint, batch, self.length, whole=self.whole)
        if self.particles == 1:
            return stepper.with_constraint(as_constrained(run))
        self.stepper = ParticleStepper(ConstrainedStepper(stepper, run), self.particles)
        return self.stepper

    def decode(self, z: State, batch: Batch, noise: Noise) -> Tokens:
        """The tokens of clean states, one row of each group of particles."""
        codec, log_weight = self.process.codec, None
        if isinstance(codec, Autoencoder):
            log_p = codec.token_logits(z).log_softmax(-1)
            run = ConstraintRun(self.constraint, batch, self.length, whole=True)
            everywhere = torch.ones_like(batch.known)
            text = run.restrict(log_p.flatten(0, 1), everywhere, ~everywhere, batch.tokens)
            text.draw_groups(noise)
            tokens = log_p.argmax(-1)
            tokens[:, run.start : run.stop] = text.draw_tokens(noise)
            log_weight = text.product.log_z
        else:
            tokens = codec.decode(z)
        if self.particles > 1:
            weights = log_weight if self.stepper is None else self.stepper.log_weight
            if weights is None:  # nothing was sampled
                weights = torch.zeros(len(tokens), dtype=torch.float64, device=tokens.device)
            tokens = tokens[choose_particles(weights.view(-1, self.particles), noise)]
        if self.constraint.end is not None and self.constraint.stop is not None:
            tokens[:, self.constraint.stop :] = self.constraint.end
        return tokens
