"""Steps of the sampling loop under a constraint, for every process that predicts tokens.

A prediction is a distribution p_l of each token given the state z_t. Restricted to the language, the product of these
is a joint distribution q of the whole text (product.py). At every step

- steppers that draw tokens or move towards them get one joint draw x of q, as a prediction without doubt;
- steppers that average over tokens (Heun, DPM-Solver++) get the marginals of q, and a draw in the last step;
- steppers that order positions by their probabilities get the marginals, and take tokens from one joint draw.

Known positions and tokens that have been fixed enter with probability 1, so a text that is finished is in the
language. For independent tokens q is p(x | z_t, language) exactly, and a step with the true x carries q(z_t | x) to
q(z_s | x), so that after any number of steps samples are p(x | language).
"""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from logosphere.codecs.tokens import DigitCodec
from logosphere.processes.base import MAX_LOGIT, Process
from logosphere.processes.capabilities import Unmasking
from logosphere.rng import Noise, categorical
from logosphere.sampling.steppers.base import Evaluate, JointDraws, PredictionUse, Stepper, StepperWrapper
from logosphere.sampling.structured.constraint import Constraint
from logosphere.sampling.structured.product import RestrictedProduct
from logosphere.types import Batch, Bool, Int64, Logits, Positions, Predict, State, Times, Tokens


class ConstraintRun:
    """A constraint in one run of a sampler: what is known, and what does not change between its steps."""

    def __init__(self, constraint: Constraint, batch: Batch, length: int, *, whole: bool):
        """`whole`: whether the network predicts all positions at any time, and not one block after another."""
        self.start, self.stop, self.whole = constraint.start, constraint.stop_within(length), whole
        part = slice(self.start, self.stop)
        self.known, self.tokens = batch.known[:, part], batch.tokens[:, part]
        self.automaton = constraint.automaton.to(batch.tokens.device)
        # What is open after the present block: only whether some text remains matters, the same in every step.
        self.tail = None if whole else constraint.open_product(self.known, self.tokens).log_beta
        self.prefix = (0, torch.zeros(len(batch), dtype=torch.long, device=batch.tokens.device))

    def restrict(self, log_p: Logits, predicted: Positions, determined: Positions, tokens: Tokens) -> "RestrictedText":
        """The distribution of the text for predictions of the positions `predicted`, packed in `log_p`, while the
        `determined` positions have `tokens`."""
        part = slice(self.start, self.stop)
        inside = predicted[:, part] & ~self.known
        packed = self._inside(predicted)
        log_p = log_p if bool(packed.all()) else log_p[packed]
        tokens = torch.where(self.known, self.tokens, tokens[:, part])
        open_places = ~self.known & ~inside & ~determined[:, part]
        columns = inside.any(0).nonzero().squeeze(1)
        first, last = (int(columns[0]), int(columns[-1]) + 1) if len(columns) else (tokens.shape[1],) * 2
        if self.whole:
            last = tokens.shape[1]
        state = self._advance(tokens, first)
        end = self.automaton.accepting.expand(len(tokens), -1) if self.tail is None else self.tail[last] > -torch.inf
        product = RestrictedProduct(
            self.automaton, inside[:, first:last], log_p, tokens[:, first:last], open_places[:, first:last], state, end
        )
        return RestrictedText(product, inside, tokens, first, last)

    def _inside(self, predicted: Positions) -> Bool[Tensor, " N"]:
        """Which of the packed predictions belong to the text."""
        field = torch.zeros_like(predicted)
        field[:, self.start : self.stop] = ~self.known
        return field[predicted]

    def _advance(self, tokens: Tokens, first: int) -> Int64[Tensor, " B"]:
        """The state after the tokens before `first`, which blocks do not change once they are finished."""
        column, state = (
            self.prefix if not self.whole and self.prefix[0] <= first else (0, torch.zeros_like(tokens[:, 0]))
        )
        for position in range(column, first):
            state = self.automaton.next[state, self.automaton.token_class[tokens[:, position]]]
        if not self.whole:
            self.prefix = (first, state)
        return state.clamp_max(self.automaton.states - 1)

    def select(self, rows: Int64[Tensor, " n"]) -> None:
        """Continue with these sequences."""
        self.prefix = (self.prefix[0], self.prefix[1][rows])


class RestrictedText:
    """The restricted distribution of a text, of which the positions from `first` to `last` are not determined."""

    def __init__(self, product: RestrictedProduct, inside: Positions, tokens: Tokens, first: int, last: int):
        self.product, self.inside, self.tokens, self.first, self.last = product, inside, tokens, first, last
        self.groups: Int64[Tensor, "B T"] | None = None
        """The groups of the tokens of one draw."""

    def draw_groups(self, noise: Noise) -> None:
        """Draw the states of the automaton: given these, tokens are independent."""
        self.groups = self.product.sample_groups(noise)

    def draw_tokens(self, noise: Noise) -> Tokens:
        """The tokens of the draw."""
        drawn = self.tokens.clone()
        if self.last > self.first:
            drawn[:, self.first : self.last] = self.product.sample(noise, self.groups)
        return drawn

    def conditional(self) -> Logits:
        """The packed predictions given the states of the automaton."""
        assert self.groups is not None
        return self.product.restrict_predictions(self.groups)


class ConstrainedEvaluate(JointDraws):
    """Evaluations of the network with predictions that are restricted to the language."""

    def __init__(
        self, run: ConstraintRun, process: Process, evaluate: Evaluate, use: PredictionUse, s: Times, noise: Noise
    ):
        self.run, self.process, self.evaluate, self.use, self.s, self.noise = run, process, evaluate, use, s, noise
        self.text: RestrictedText | None = None
        """The restricted distribution of the last evaluation, with its predictions, their positions and times."""
        self.log_p: Logits | None = None
        self.predicted: Positions | None = None
        self.decoded: Tokens | None = None

    def __call__(self, z: State, t: Times, where: Positions, denoiser: Predict | None = None) -> Logits:
        if denoiser is not None:
            return self.evaluate(z, t, where, denoiser)
        process, codec = self.process, self.process.codec
        uncertain = process.needs_prediction(z, t > 0)
        predicted = (where | uncertain) if self.run.whole else where
        out = self.evaluate(z, t, predicted)
        log_p = process.log_posterior(out, z[predicted], t[predicted])
        self.decoded = codec.decode(z).clamp(0, codec.vocab_size - 1)
        if isinstance(codec, DigitCodec):
            given = _DigitPredictions(codec, z, predicted, log_p)
            text = self.run.restrict(given.log_p, given.predicted, given.determined(uncertain), self.decoded)
        else:
            text = self.run.restrict(log_p, predicted, ~(predicted | uncertain), self.decoded)
        text.draw_groups(self.noise)
        self.__dict__.pop("tokens", None)  # those of an earlier evaluation in this step
        self.text, self.log_p, self.predicted = text, log_p, predicted
        posterior = self._posterior(log_p, predicted, text)
        if not torch.equal(predicted, where):
            posterior = posterior[where[predicted]]
        return process.from_posterior(posterior, z[where], t[where]).to(out.dtype)

    @property
    def lazy(self) -> bool:
        """Whether the stepper itself draws tokens, for masks that become tokens: given the states of the automaton."""
        process = self.process
        return (
            self.use == "draws"
            and isinstance(process, Unmasking)
            and process.unmasks_tokens
            and process.codec.is_discrete
        )

    @cached_property
    def tokens(self) -> Tokens:
        """The joint draw of the last evaluation, at all positions."""
        assert self.decoded is not None and self.text is not None
        drawn = self.decoded.clone()
        drawn[:, self.run.start : self.run.stop] = self.text.draw_tokens(self.noise)
        return drawn

    def _posterior(self, log_p: Logits, predicted: Positions, text: RestrictedText) -> Logits:
        """What the stepper gets in place of the prediction; outside of the text that is the prediction."""
        codec = self.process.codec
        if isinstance(codec, DigitCodec):
            classes = codec.to_digits(self.tokens).flatten(1)[predicted]
            inside = codec.expand_to_states(self._in_text(self.tokens, torch.ones_like(text.inside)))[predicted]
            certain = torch.full_like(log_p, -MAX_LOGIT).scatter(-1, classes[:, None], 0.0)
            return torch.where(inside[:, None], certain, log_p)
        inside = self._in_text(predicted, text.inside)[predicted]
        if self.lazy:
            found = text.conditional()
        elif self.use == "draws":
            found = self._certain(log_p, predicted, inside)
        else:
            found = text.product.log_marginals().to(log_p.dtype)
        if self.use == "means":
            certain = self._certain(log_p, predicted, inside)
            found = torch.where((self.s[predicted] == 0)[inside][:, None], certain, found)
        return found if bool(inside.all()) else log_p.masked_scatter(inside[:, None], found)

    def _certain(self, log_p: Logits, predicted: Positions, inside: Bool[Tensor, " N"]) -> Logits:
        """A prediction of the drawn tokens without doubt."""
        drawn = self.tokens[predicted][inside]
        return torch.full_like(log_p[inside], -MAX_LOGIT).scatter(-1, drawn[:, None], 0.0)

    def _in_text(self, like: Tensor, inside: Bool[Tensor, "B T"]) -> Positions:
        """A field over the positions of the text, as one over all positions."""
        field = torch.zeros_like(like, dtype=torch.bool)
        field[:, self.run.start : self.run.stop] = inside
        return field

    def draw(self, out: Logits, where: Positions, noise: Noise) -> Int64[Tensor, " N"]:
        """The tokens of the joint draw; outside of the text, those of the prediction."""
        inside = self._in_text(self.tokens, torch.ones_like(self.run.known))[where]
        if bool(inside.all()):
            return self.tokens[where]
        outside = categorical(out, noise.for_positions(where).uniform(len(out)))
        return torch.where(inside, self.tokens[where], outside)


class _DigitPredictions:
    """Predictions of whole tokens from those of their digits, which are independent."""

    def __init__(self, codec: DigitCodec, z: State, predicted: Positions, log_p: Logits):
        self.codec = codec
        own = z[..., : codec.base].argmax(-1)
        digits = torch.full((*own.shape, codec.base), -MAX_LOGIT).to(log_p).scatter(-1, own[..., None], 0.0)
        digits[predicted] = log_p
        by_token = digits.unflatten(1, (-1, codec.digits))
        self.predicted = predicted.unflatten(1, (-1, codec.digits)).any(-1)
        codes = codec.to_digits(torch.arange(codec.vocab_size, device=z.device))
        packed = by_token[self.predicted]
        self.log_p = torch.stack([packed[:, j, codes[:, j]] for j in range(codec.digits)]).sum(0).log_softmax(-1)

    def determined(self, uncertain: Bool[Tensor, "B M"]) -> Bool[Tensor, "B L"]:
        return ~(self.predicted | uncertain.unflatten(1, (-1, self.codec.digits)).any(-1))


class ConstrainedStepper(StepperWrapper):
    """The steps of `inner` in a language."""

    def __init__(self, inner: Stepper, run: ConstraintRun):
        self.inner, self.run = inner, run
        self.needs, self.time_free, self.unfiltered = inner.needs, inner.time_free, inner.unfiltered
        self.last: ConstrainedEvaluate | None = None
        """The last evaluation of the step; None if there was none."""

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        constrained = ConstrainedEvaluate(self.run, process, evaluate, self.inner.prediction_use, s, noise)
        moved = self.inner(process, constrained, z, t, s, noise)
        self.last = None if constrained.text is None else constrained
        if self.last is None or constrained.lazy:
            return moved
        return self._finish(process, constrained, moved, t, s)

    def _finish(self, process: Process, evaluated: ConstrainedEvaluate, z: State, t: Times, s: Times) -> State:
        """States with the tokens of the joint draw where this step ends: some steppers read them off the state."""
        if not bool((s == 0).logical_and(t > 0).any()):
            return z
        tokens = evaluated.tokens
        text = torch.zeros_like(tokens, dtype=torch.bool)
        text[:, self.run.start : self.run.stop] = ~self.run.known
        ended = process.codec.expand_to_states(text) & (t > 0) & (s == 0)
        shape = (*ended.shape, *[1] * (z.dim() - 2))
        return torch.where(ended.view(shape), process.codec.encode(tokens).to(z.dtype), z)


def as_constrained(run: ConstraintRun) -> Callable[[Stepper], Stepper]:
    """The function that puts a stepper under a constraint, for `Stepper.with_constraint`."""
    return lambda stepper: ConstrainedStepper(stepper, run)
