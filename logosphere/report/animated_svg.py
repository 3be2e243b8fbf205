"""Animations as self-playing SVG files, which also play inside a README."""

from html import escape

from logosphere.report.animation import Animation, apply_changes

COLUMNS, SECONDS, HOLD = 64, 6.0, 4.0
WIDTH, HEIGHT, MARGIN = 11, 26, 16


def render_animated_svg(animation: Animation, sample: int = 0) -> str:
    """Render one sample as an SVG: a dot is replaced by the predicted symbol, which turns bright when it is written."""
    written, symbols = _find_last_changes(animation.frames, animation.length, sample)
    predicted = written
    if animation.guesses:
        visible, _ = _find_last_changes(_combine_frames(animation), animation.length, sample)
        predicted = [min(a, b) for a, b in zip(visible, written, strict=True)]
    cells = lay_out([animation.symbols[symbol] if symbol >= 0 else " " for symbol in symbols])
    width = COLUMNS * WIDTH + 2 * MARGIN
    height = (cells[-1][1] + 1) * HEIGHT + 2 * MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>Text condensing out of noise</title>",
        _render_style(sorted({*written, *predicted}), len(animation.frames)),
        f'<rect width="{width}" height="{height}" rx="8" fill="#10131a"/>',
    ]
    for (column, row, text), predicted_at, written_at in zip(cells, predicted, written, strict=True):
        at = f'x="{MARGIN + column * WIDTH}" y="{MARGIN + (row + 0.72) * HEIGHT:.0f}"'
        lines.append(f'<text {at} class="d d{predicted_at}">·</text>')
        if text.strip():
            lines.append(f'<g class="a{predicted_at}"><text {at} class="c c{written_at}">{escape(text)}</text></g>')
    return "\n".join([*lines, "</svg>", ""])


def _find_last_changes(frames: list[list[list[int]]], length: int, sample: int) -> tuple[list[int], list[int]]:
    """Return for each position the frame (from 1) of its last change, and its final symbol."""
    last, symbols = [0] * length, [-1] * length
    for number, frame in enumerate(frames, start=1):
        for position in apply_changes(symbols, frame[sample]):
            last[position] = number
    return last, symbols


def _combine_frames(animation: Animation) -> list[list[list[int]]]:
    """Return the changes of what is visible: the written symbol, or the predicted one where none is written."""
    frames = []
    rows = [([-1] * animation.length, [-1] * animation.length) for _ in animation.frames[0]]
    before = [[-1] * animation.length for _ in animation.frames[0]]
    for frame, guesses in zip(animation.frames, animation.guesses, strict=True):
        changed = list[list[int]]()
        for (written, guessed), old, new, guess in zip(rows, before, frame, guesses, strict=True):
            apply_changes(written, new)
            apply_changes(guessed, guess)
            visible = [a if a >= 0 else b for a, b in zip(written, guessed, strict=True)]
            changed.append([x for i in range(animation.length) if visible[i] != old[i] for x in (i, visible[i])])
            old[:] = visible
        frames.append(changed)
    return frames


def lay_out(symbols: list[str]) -> list[tuple[int, int, str]]:
    """Return (column, row, symbol) of each symbol; one that does not fit into a line begins the next line."""
    column, row = 0, 0
    cells = list[tuple[int, int, str]]()
    for symbol in symbols:
        size = max(1, len(symbol))
        if column and column + size > COLUMNS:
            column, row = 0, row + 1
        cells.append((column, row, symbol))
        column += size
    return cells


def _render_style(numbers: list[int], frames: int) -> str:
    """Return the style sheet, with CSS animations for each frame number that occurs."""
    total = SECONDS + HOLD
    lines = ["<style>text{font:18px ui-monospace,Menlo,Consolas,monospace}.d{fill:#5b6475}"]
    for number in numbers:
        at = 100 * (0.6 + (SECONDS - 0.6) * number / frames) / total
        lines.append(f"@keyframes d{number}{{0%,{at:.1f}%{{opacity:1}}{at + 0.1:.1f}%,100%{{opacity:0}}}}")
        lines.append(f"@keyframes a{number}{{0%,{at:.1f}%{{opacity:0}}{at + 0.1:.1f}%,100%{{opacity:1}}}}")
        bright = f"{at + 0.1:.1f}%{{fill:#ffd166}}{at + 8:.1f}%,100%{{fill:#e8ebf2}}"
        lines.append(f"@keyframes c{number}{{0%,{at:.1f}%{{fill:#7d879a}}{bright}}}")
        lines += [f".{kind}{number}{{animation:{kind}{number} {total}s infinite}}" for kind in "dac"]
    return "\n".join(lines) + "</style>"
