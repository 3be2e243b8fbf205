"""The interface of denoisers: `Denoiser`, and `Wrapper` for denoisers around another denoiser."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.base import TokenRows
from logosphere.errors import UserError
from logosphere.networks.backbone import ConditionTokens
from logosphere.networks.conditioning import Conditioner
from logosphere.networks.heads import LinearHead, TiedHead
from logosphere.types import Condition, Float, Int64, LogitChunks, Logits, Rows, State, Times, Where, pack


def check_block(length: int, block: int) -> None:
    """Raise UserError unless blocks of this size fill the length."""
    if block < 1 or length % block:
        raise UserError(f"A length of {length} does not split into blocks of {block}; choose a block that divides it.")


def check_whole(decoder_depth: int | None) -> None:
    """Raise UserError for a decoder in a network of whole sequences, which has no clean text to encode."""
    if decoder_depth is not None:
        raise UserError(f"decoder_depth={decoder_depth} needs blocks: set block, or use bd3lm.")


def pack_output(out: Logits, where: Where) -> Logits:
    """Return the prediction of `Denoiser.forward` packed as [N, V], also where all positions were predicted."""
    return pack(out, None) if where is None else out


@dataclass(frozen=True)
class CachePlan:
    """Which keys and values a bidirectional network keeps while a block is decoded (networks/block_cache.py)."""

    starts: tuple[int, ...]
    """First positions of the blocks; the last block ends with the sequence."""
    dual: bool = False
    """Keep those of the positions after the block as well as before it (Wu et al. 2025, Fast-dLLM)."""
    refresh: int = 0
    """Compute all of them again every so many evaluations; 0 for once in each block."""


@dataclass(frozen=True)
class Evaluations:
    """What a training step evaluates for each token, from which costs are estimated (runs/cost_model.py)."""

    positions: float = 1.0
    """Positions at which the blocks are evaluated."""
    pairs: float = 1.0
    """Pairs of query and key, in units of the length of the sequence; masked pairs count."""


class Denoiser(nn.Module, ABC):
    """Predicts p(x_i | z) from noisy states z, times t and the clean states of earlier blocks."""

    block: int
    """Number of positions that share one time: the whole length, or less when blocks are generated in sequence."""

    reads_time: bool
    """Whether the prediction depends on t. If not, it can be cached while z does not change."""

    @property
    def answers_first(self) -> bool:
        """Whether position 0 is predicted; otherwise its token must be given and is not counted."""
        return True

    @abstractmethod
    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        """Return logits [B, M, V]; with `where`, only those of the selected positions, packed as [N, V].

        `context` holds clean states; block b may read those of blocks before b and no others.
        """

    def logit_chunks(self, z: State, t: Times, context: State, where: Where) -> LogitChunks:
        """Return a function that computes the logits of some of the selected positions, of all for `where` = None.

        By default all logits are computed at once.
        """
        return LogitChunks(pack_output(self(z, t, context, where), where), lambda out, rows: out)

    def begin_sampling(self) -> "Denoiser":
        """Return a denoiser for one run of a sampler, which may keep a cache; by default the denoiser itself."""
        return self

    def with_cache(self, plan: CachePlan) -> "Denoiser":
        """Return a denoiser for one run of a sampler, which keeps keys and values while a block is decoded."""
        raise UserError(
            "This network has no cache of keys and values; cache=prefix and cache=dual need a transformer that reads "
            "tokens, so leave out cache."
        )

    def with_condition(self, condition: Condition) -> "Denoiser":
        """Return this denoiser with a condition bound to it; it then accepts only the sequences of the condition."""
        raise UserError(
            "This model was built without conditions; build it with labels=…, source=… or signal=… to use one."
        )

    def with_documents(self, documents: Int64[Tensor, "B L"]) -> "Denoiser":
        """Return this denoiser for rows of several documents, given the number of that of each position."""
        raise UserError(
            "Packed documents need a network that keeps their attention apart, as published layouts do; leave out "
            "--pack."
        )

    def select_rows(self, kept: Rows) -> "Denoiser":
        """Return this denoiser for some sequences of its batch; by default it does not depend on the batch."""
        return self

    def with_context(self, context: State) -> "Denoiser":
        """Return this denoiser with the clean states already read, for several evaluations with the same ones.

        By default it is the denoiser itself, which reads them in every evaluation.
        """
        return self

    def self_conditioning_period(self) -> int:
        """Return n if every n-th sequence of a training batch is self-conditioned, and 0 otherwise."""
        return 0

    def with_self_conditioning(self, on: bool) -> "Denoiser":
        """Return this denoiser with self-conditioning always on or always off, if it has any."""
        return self

    def evaluations(self, draws: int = 1) -> Evaluations:
        """Return what a training step evaluates for each token, given its noisy copies (`draws`).

        By default that is every position once a copy, with all others.
        """
        return Evaluations(positions=float(draws), pairs=float(draws))


class Wrapper(Denoiser, ABC):
    """A denoiser around another denoiser; everything that it does not override is delegated to `inner`."""

    inner: Denoiser

    def __init__(self, inner: Denoiser):
        super().__init__()
        self.inner, self.block, self.reads_time = inner, inner.block, inner.reads_time

    @property
    def answers_first(self) -> bool:
        return self.inner.answers_first

    @abstractmethod
    def rewrap(self, inner: Denoiser) -> Denoiser:
        """Return the same wrapper around another denoiser."""

    def begin_sampling(self) -> Denoiser:
        return self._rewrap_in_mode(self.inner.begin_sampling())

    def with_cache(self, plan: CachePlan) -> Denoiser:
        return self._rewrap_in_mode(self.inner.with_cache(plan))

    def with_condition(self, condition: Condition) -> Denoiser:
        return self._rewrap_in_mode(self.inner.with_condition(condition))

    def with_documents(self, documents: Int64[Tensor, "B L"]) -> Denoiser:
        return self._rewrap_in_mode(self.inner.with_documents(documents))

    def select_rows(self, kept: Rows) -> Denoiser:
        return self._rewrap_in_mode(self.inner.select_rows(kept))

    def with_context(self, context: State) -> Denoiser:
        inner = self.inner.with_context(context)
        return self if inner is self.inner else self._rewrap_in_mode(inner)

    def self_conditioning_period(self) -> int:
        return self.inner.self_conditioning_period()

    def with_self_conditioning(self, on: bool) -> Denoiser:
        return self._rewrap_in_mode(self.inner.with_self_conditioning(on))

    def evaluations(self, draws: int = 1) -> Evaluations:
        return self.inner.evaluations(draws)

    def _rewrap_in_mode(self, inner: Denoiser) -> Denoiser:
        return self.rewrap(inner).train(self.training)  # new modules start in training mode


def add_signal(
    h: Float[Tensor, "B M D"], memory: ConditionTokens | None, positions: slice = slice(None)
) -> Float[Tensor, "B M D"]:
    """Add the signal of a condition at these positions to their input embeddings."""
    return h if memory is None or memory.signal is None else h + memory.signal[:, positions]


class ConditionalNetwork(Denoiser, ABC):
    """A network that accepts a condition, if it was built with a conditioner."""

    conditioner: Conditioner | None
    stem: nn.Module
    head: LinearHead | TiedHead

    @abstractmethod
    def features(self, z: State, t: Times, context: State, memory: ConditionTokens | None) -> Float[Tensor, "B M D"]:
        """Return the input of the head, given the condition tokens."""

    def predict(self, z: State, t: Times, context: State, where: Where, memory: ConditionTokens | None) -> Logits:
        """Return the logits, given the condition tokens."""
        h = self.features(z, t, context, memory)
        return self.logits(h if where is None else h[where])

    def predict_parts(
        self, z: State, t: Times, context: State, where: Where, memory: ConditionTokens | None
    ) -> LogitChunks:
        """Return a function that computes some of the logits, given the condition tokens."""
        return self.head_parts(self.features(z, t, context, memory), where)

    def head_parts(self, h: Float[Tensor, "B M D"], where: Where) -> LogitChunks:
        """Return a function that computes some of the logits of features."""
        h, head, vectors = pack(h, where), self.head, self.token_rows()
        if vectors is None or isinstance(head, LinearHead):
            return LogitChunks(h, lambda h, rows: head(h), tuple(head.parameters()))
        return LogitChunks(h, lambda h, rows: head(h, vectors), (*head.parameters(), vectors))

    def logits(self, h: Float[Tensor, "... D"]) -> Logits:
        """Return the logits of features."""
        vectors = self.token_rows()
        return self.head(h) if vectors is None else self.head(h, vectors)

    def token_rows(self) -> Float[Tensor, "V D"] | None:
        """Return the input vectors of the tokens for a tied head; None for a head with weights of its own."""
        if not isinstance(self.head, TiedHead):
            return None
        if not isinstance(self.stem, TokenRows):
            raise UserError("tied=True needs a network that reads tokens or beliefs; these states have no table.")
        return self.stem.token_rows(len(self.head.bias))

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        return self.predict(z, t, context, where, self._empty_tokens(len(z)))

    def logit_chunks(self, z: State, t: Times, context: State, where: Where) -> LogitChunks:
        return self.predict_parts(z, t, context, where, self._empty_tokens(len(z)))

    def _empty_tokens(self, batch: int) -> ConditionTokens | None:
        return None if self.conditioner is None else self.conditioner.empty_tokens(batch)

    def open_session(self, memory: ConditionTokens | None) -> Denoiser:
        """Return a denoiser for one run of a sampler, given the condition tokens."""
        return self if memory is None else WithConditionTokens(self, memory)

    def open_cached_session(self, memory: ConditionTokens | None, plan: CachePlan) -> Denoiser:
        """Return a denoiser that keeps keys and values while a block is decoded, given the condition tokens."""
        return super().with_cache(plan)

    def begin_sampling(self) -> Denoiser:
        return self.open_session(None)

    def with_cache(self, plan: CachePlan) -> Denoiser:
        return self.open_cached_session(None, plan)

    def with_condition(self, condition: Condition) -> Denoiser:
        return super().with_condition(condition) if self.conditioner is None else WithCondition(self, condition)


def check_tied(denoiser: Denoiser) -> None:
    """Raise UserError unless the network has a head that is tied to its input vectors of the tokens."""
    networks = [module for module in denoiser.modules() if isinstance(module, ConditionalNetwork)]
    if not networks or any(network.token_rows() is None for network in networks):
        raise UserError("tied=True needs a network that predicts tokens; the outputs of this one are something else.")


class WithCondition(Denoiser):
    """A network with a condition bound to it, which is encoded anew at each call."""

    def __init__(self, network: ConditionalNetwork, condition: Condition):
        super().__init__()
        self.network, self.block, self.reads_time = network, network.block, network.reads_time
        self.condition = condition
        self.train(network.training)

    def _encode(self) -> ConditionTokens:
        assert self.network.conditioner is not None
        return self.network.conditioner(self.condition)

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        return self.network.predict(z, t, context, where, self._encode())

    def logit_chunks(self, z: State, t: Times, context: State, where: Where) -> LogitChunks:
        return self.network.predict_parts(z, t, context, where, self._encode())

    def begin_sampling(self) -> Denoiser:
        with torch.no_grad():  # the condition is encoded once for a whole run
            return self.network.open_session(self._encode())

    def with_cache(self, plan: CachePlan) -> Denoiser:
        with torch.no_grad():
            return self.network.open_cached_session(self._encode(), plan)

    def select_rows(self, kept: Rows) -> Denoiser:
        return WithCondition(self.network, self.condition.map(lambda field: field[kept]))


class WithConditionTokens(Denoiser):
    """A network with an encoded condition bound to it."""

    def __init__(self, network: ConditionalNetwork, memory: ConditionTokens):
        super().__init__()
        self.network, self.block, self.reads_time, self.memory = network, network.block, network.reads_time, memory

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        return self.network.predict(z, t, context, where, self.memory)


AddEvidence = Callable[[Logits, State, Times], Logits]
"""`Process.add_evidence`: (logits from the context, states, times) -> logits of the posterior."""

Belief = Callable[[State, Times], Float[Tensor, "... K"]]
"""`Process.belief`: (states, times) -> √K softmax_k log q(z_t | x = k)."""


class PosteriorHead(Wrapper):
    """Adds the log-likelihood of each position's own state, so that the network predicts from the context only.

    For masked diffusion this copies revealed tokens (MDLM's carry-over), for uniform diffusion it is Bayes' rule.
    """

    def __init__(self, inner: Denoiser, add_evidence: AddEvidence):
        super().__init__(inner)
        self.add_evidence = add_evidence

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        out = self.inner(z, t, context, where)
        return self.add_evidence(out, z, t) if where is None else self.add_evidence(out, z[where], t[where])

    def logit_chunks(self, z: State, t: Times, context: State, where: Where) -> LogitChunks:
        inner = self.inner.logit_chunks(z, t, context, where)
        z, t = pack(z, where), pack(t, where)
        return inner.map(lambda out, rows: self.add_evidence(out, z[rows], t[rows]))

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return PosteriorHead(inner, self.add_evidence)


class BeliefInput(Wrapper):
    """Replaces the state by the belief softmax_k log q(z | x = k), whose scale is the same at every time."""

    def __init__(self, inner: Denoiser, belief: Belief):
        super().__init__(inner)
        self.belief = belief

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        belief = self.belief(z, t)
        clean = belief if self.block == z.shape[1] else self._certain(context, belief.shape[-1])
        return self.inner(belief, t, clean, where)

    def with_context(self, context: State) -> Denoiser:
        K = context.shape[-1] - 1  # the last coordinate of a state is the mask
        return self._rewrap_in_mode(self.inner.with_context(self._certain(context, K)))

    def _certain(self, context: State, K: int) -> Float[Tensor, "B M K"]:
        """The beliefs of clean states, which are token ids where there are many tokens."""
        states = context if context.is_floating_point() else F.one_hot(context, K).float()
        return K**0.5 * states[..., :K]

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return BeliefInput(inner, self.belief)
