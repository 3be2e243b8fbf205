"""How much a batch estimate of mdlm's bound scatters, against independent uniform times with independent masks.

The same 64 sequences are measured again and again with fresh times and masks, by a network that has been trained a
little, so that its cross-entropy grows with the mask rate as it does in earnest.
"""

import torch
from harness import present

import logosphere as ls
from logosphere.noise import Drawn
from logosphere.processes.base import bound
from logosphere.training.optim import Optim
from logosphere.types import Batch

LENGTH, BATCH, VOCABULARY, REPEATS = 128, 64, 27, 400


def main() -> None:
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    transition = (3 * torch.randn(VOCABULARY, VOCABULARY)).softmax(1)
    language = ls.languages.markov(transition, torch.full((VOCABULARY,), 1 / VOCABULARY), LENGTH)
    by_count = ls.build("mdlm", vocab_size=VOCABULARY, length=LENGTH, width=64, depth=2, heads=2)
    batches = (language.sample(32, rng) for _ in range(10**6))
    for _ in ls.fit(by_count, batches, steps=300, optim=Optim(lr=3e-3)):
        pass
    by_chance = ls.build("mdlm", vocab_size=VOCABULARY, length=LENGTH, denoiser=by_count.denoiser, exact_count=False)
    batch = Batch.of(language.sample(BATCH, rng))

    @torch.no_grad()
    def scatter(model: ls.Model, stratified: bool) -> dict[str, float]:
        means = []
        for _ in range(REPEATS):
            noise = Drawn(rng, BATCH)
            w = noise.quantiles(1, 1)[:, 0] if stratified else noise.uniform(BATCH, 1)
            means.append(bound(model.process, model.denoiser, batch, w, noise).total.mean() / LENGTH)
        values = torch.stack(means).double()
        return {"mean": float(values.mean()), "deviation": float(values.std())}

    rows = {
        "independent times, masks by chance": scatter(by_chance, stratified=False),
        "stratified times, masks by chance": scatter(by_chance, stratified=True),
        "independent times, masks by count": scatter(by_count, stratified=False),
        "stratified times, masks by count": scatter(by_count, stratified=True),
    }
    plain = rows["independent times, masks by chance"]["deviation"]
    for row in rows.values():
        row["ratio"] = row["deviation"] / plain
    present(f"bound of a batch of {BATCH} × {LENGTH}, nats per token, {REPEATS} repeats", rows)


if __name__ == "__main__":
    main()
