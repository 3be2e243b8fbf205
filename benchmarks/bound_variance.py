"""Standard deviation of a batch estimate of mdlm's bound, relative to independent uniform times and independent masks.

The bound of the same 64 sequences is estimated repeatedly with new times and masks. The network has been trained
briefly, so that its cross-entropy grows with the mask rate.
"""

from collections.abc import Callable

import torch
from harness import print_table

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
    exact = ls.build("mdlm", vocab_size=VOCABULARY, length=LENGTH, width=64, depth=2, heads=2)
    batches = (language.sample(32, rng) for _ in range(10**6))
    for _ in ls.fit(exact, batches, steps=300, optim=OptimizerConfig(lr=3e-3)):
        pass
    independent = ls.build("mdlm", vocab_size=VOCABULARY, length=LENGTH, denoiser=exact.denoiser, exact_count=False)
    batch = Batch.of(language.sample(BATCH, rng))

    def estimate_independent(noise: GeneratorNoise) -> torch.Tensor:
        """t ~ U(0, 1) for each sequence, each token masked with probability t, cross-entropy / t."""
        t = noise.uniform(BATCH, 1).float().expand(BATCH, LENGTH)
        z = independent.process.corrupt(batch.tokens, t, noise)
        where = z == VOCABULARY
        assert exact.denoiser is not None
        out = exact.denoiser(z, t, context=z, where=where)
        return independent.process.elbo_rate(out, batch.tokens[where], z[where], t[where]).sum() / BATCH

    def estimate_stratified(model: ls.Model) -> Callable[[GeneratorNoise], torch.Tensor]:
        return lambda noise: model.bound(batch, noise).total.mean()

    @torch.no_grad()
    def measure_spread(estimate: Callable[[GeneratorNoise], torch.Tensor]) -> dict[str, float]:
        values = torch.stack([estimate(GeneratorNoise(rng, BATCH)) for _ in range(REPEATS)]).double() / LENGTH
        return {"mean": float(values.mean()), "deviation": float(values.std())}

    rows = {
        "independent uniform times, independent masks": measure_spread(estimate_independent),
        "stratified times, independent masks": measure_spread(estimate_stratified(independent)),
        "stratified times, exact mask counts": measure_spread(estimate_stratified(exact)),
    }
    baseline = rows["independent uniform times, independent masks"]["deviation"]
    for row in rows.values():
        row["ratio"] = row["deviation"] / baseline
    print_table(f"bound of a batch of {BATCH} × {LENGTH}, nats per token, {REPEATS} repeats", rows)


if __name__ == "__main__":
    main()
