"""Draws docs/condensing.svg: a text condensing out of masks, as an animation that plays in any browser.

python docs/condensing.py RUN > docs/condensing.svg
"""

import sys
from html import escape

import torch

import logosphere as ls
from logosphere.runs.folder import RunFolder

COLUMNS, STEPS, SECONDS, HOLD = 64, 64, 6.0, 4.0
WIDTH, HEIGHT, MARGIN = 11, 26, 16


def main() -> None:
    run = RunFolder(sys.argv[1])
    model, tokenizer = run.model(), run.tokenizer
    born = torch.full((model.length,), -1)
    tokens = torch.zeros(model.length, dtype=torch.long)

    def watch(frame: ls.Frame) -> None:
        shown = frame.tokens[0]
        fresh = (shown >= 0) & (born < 0)
        born[fresh] = frame.step
        tokens[fresh] = shown[fresh]

    rng = torch.Generator().manual_seed(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    ls.generate(model, n=1, steps=STEPS, rng=rng, watch=watch, top_p=0.95)
    rows = -(-model.length // COLUMNS)
    width, height = COLUMNS * WIDTH + 2 * MARGIN, rows * HEIGHT + 2 * MARGIN
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">')
    print("<title>Text condensing out of masks</title>")
    print(_style(sorted(set(born.tolist()))))
    print(f'<rect width="{width}" height="{height}" rx="8" fill="#10131a"/>')
    for i in range(model.length):
        x, y = MARGIN + (i % COLUMNS) * WIDTH, MARGIN + (i // COLUMNS + 0.72) * HEIGHT
        place, moment = f'x="{x}" y="{y:.0f}"', int(born[i])
        print(f'<text {place} class="d d{moment}">·</text>')
        symbol = tokenizer.symbol(int(tokens[i]))
        if symbol.strip():
            print(f'<text {place} class="c c{moment}">{escape(symbol)}</text>')
    print("</svg>")


def _style(moments: list[int]) -> str:
    """One pair of animations for each step: the dot goes, the letter comes bright and settles."""
    total = SECONDS + HOLD
    lines = ["<style>text{font:18px ui-monospace,Menlo,Consolas,monospace}.d{fill:#5b6475}.c{fill:#e8ebf2}"]
    for moment in moments:
        at = 100 * (0.6 + (SECONDS - 0.6) * moment / STEPS) / total
        lines.append(f"@keyframes d{moment}{{0%,{at:.1f}%{{opacity:1}}{at + 0.1:.1f}%,100%{{opacity:0}}}}")
        bright = f"{at + 0.1:.1f}%{{opacity:1;fill:#ffd166}}{at + 8:.1f}%,100%{{opacity:1;fill:#e8ebf2}}"
        lines.append(f"@keyframes c{moment}{{0%,{at:.1f}%{{opacity:0}}{bright}}}")
        lines.append(
            f".d{moment}{{animation:d{moment} {total}s infinite}}.c{moment}{{animation:c{moment} {total}s infinite}}"
        )
    return "\n".join(lines) + "</style>"


if __name__ == "__main__":
    main()
