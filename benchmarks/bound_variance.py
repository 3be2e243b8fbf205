"""How much a batch estimate of mdlm's bound scatters, against independent uniform times with independent masks.

The same 64 sequences are measured again and again with fresh times and masks, by a network that has been trained a
little, so that its cross-entropy grows with the mask rate as it does in earnest.
"""

from collections.abc import Callable

import torch
from harness import present

import logosphere as ls
from logosphere.rng import GeneratorNoise
from logosphere.training.optimizer import OptimizerConfig
from logosphere.types import Batch

LENGTH, BATCH, VOCABULARY, REPEATS = 128, 64, 27, 400


def main() -> None:
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    transition = (3 * torch.randn(VOCABULARY, VOCABULARY)).softmax(1)
    language = ls.languages.markov(transition, torch.full((VOCABULARY,), 1 / VOCABULARY), LENGTH)
    by_count = ls.build("mdlm", vocab_size=VOCABULARY, length=LENGTH, width=64, depth=2, heads=2)
    batches = (language.sample(32, rng) for _ in range(10**6))
    for _ in ls.fit(by_count, batches, steps=300, optim=OptimizerConfig(lr=3e-3)):
        pass
    chance = ls.build("mdlm", vocab_size=VOCABULARY, length=LENGTH, denoiser=by_count.denoiser, exact_count=False)
    batch = Batch.of(language.sample(BATCH, rng))

    def textbook(noise: GeneratorNoise) -> torch.Tensor:
        """t ~ U(0, 1) for each sequence, each token masked with probability t, cross-entropy / t."""
        t = noise.uniform(BATCH, 1).float().expand(BATCH, LENGTH)
        z = chance.process.corrupt(batch.tokens, t, noise)
        where = z == VOCABULARY
        assert by_count.denoiser is not None
        out = by_count.denoiser(z, t, context=z, where=where)
        return chance.process.elbo_rate(out, batch.tokens[where], z[where], t[where]).sum() / BATCH

    def ours(model: ls.Model) -> Callable[[GeneratorNoise], torch.Tensor]:
        return lambda noise: model.bound(batch, noise).total.mean()

    @torch.no_grad()
    def scatter(estimate: Callable[[GeneratorNoise], torch.Tensor]) -> dict[str, float]:
        values = torch.stack([estimate(GeneratorNoise(rng, BATCH)) for _ in range(REPEATS)]).double() / LENGTH
        return {"mean": float(values.mean()), "deviation": float(values.std())}

    rows = {
        "independent times, masks by chance": scatter(textbook),
        "stratified times, masks by chance": scatter(ours(chance)),
        "stratified times, masks by count": scatter(ours(by_count)),
    }
    plain = rows["independent times, masks by chance"]["deviation"]
    for row in rows.values():
        row["ratio"] = row["deviation"] / plain
    present(f"bound of a batch of {BATCH} × {LENGTH}, nats per token, {REPEATS} repeats", rows)


if __name__ == "__main__":
    main()
