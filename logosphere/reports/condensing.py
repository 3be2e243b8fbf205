"""Text condensing out of noise as an animated drawing that plays in any browser, also inside a README."""

from html import escape

from logosphere.reports.board import Film

COLUMNS, SECONDS, HOLD = 64, 6.0, 4.0
WIDTH, HEIGHT, MARGIN = 11, 26, 16


def condensing(film: Film, sample: int = 0) -> str:
    """One sample of a film: a dot goes when its letter is guessed for good, which turns bright when it is written."""
    born, symbols = last_changes(film.frames, film.length, sample)
    dawn = born
    if film.guesses:
        guessed, _ = last_changes(_seen(film), film.length, sample)
        dawn = [min(a, b) for a, b in zip(guessed, born, strict=True)]
    cells = laid([film.symbols[symbol] if symbol >= 0 else " " for symbol in symbols])
    width = COLUMNS * WIDTH + 2 * MARGIN
    height = (cells[-1][1] + 1) * HEIGHT + 2 * MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>Text condensing out of noise</title>",
        _style(sorted({*born, *dawn}), len(film.frames)),
        f'<rect width="{width}" height="{height}" rx="8" fill="#10131a"/>',
    ]
    for (column, row, letters), seen, written in zip(cells, dawn, born, strict=True):
        at = f'x="{MARGIN + column * WIDTH}" y="{MARGIN + (row + 0.72) * HEIGHT:.0f}"'
        lines.append(f'<text {at} class="d d{seen}">·</text>')
        if letters.strip():
            lines.append(f'<g class="a{seen}"><text {at} class="c c{written}">{escape(letters)}</text></g>')
    return "\n".join([*lines, "</svg>", ""])


def last_changes(frames: list[list[list[int]]], length: int, sample: int) -> tuple[list[int], list[int]]:
    """Of each position, the frame (from 1) that changed it last, and the symbol that it has since."""
    when, symbols = [0] * length, [-1] * length
    for moment, frame in enumerate(frames, start=1):
        changes = frame[sample]
        for place, symbol in zip(changes[::2], changes[1::2], strict=True):
            when[place], symbols[place] = moment, symbol
    return when, symbols


def _seen(film: Film) -> list[list[list[int]]]:
    """Frames of what is read at each position, written or guessed: one that turns into the other is no change."""
    frames = []
    rows = [([-1] * film.length, [-1] * film.length) for _ in film.frames[0]]
    before = [[-1] * film.length for _ in film.frames[0]]
    for frame, guesses in zip(film.frames, film.guesses, strict=True):
        changed = list[list[int]]()
        for (written, guessed), old, now, would in zip(rows, before, frame, guesses, strict=True):
            for row, changes in ((written, now), (guessed, would)):
                for place, symbol in zip(changes[::2], changes[1::2], strict=True):
                    row[place] = symbol
            read = [a if a >= 0 else b for a, b in zip(written, guessed, strict=True)]
            changed.append([value for i in range(film.length) if read[i] != old[i] for value in (i, read[i])])
            old[:] = read
        frames.append(changed)
    return frames


def laid(symbols: list[str]) -> list[tuple[int, int, str]]:
    """(column, row, symbol): symbols one after another, on a new line where one would not fit."""
    column, row = 0, 0
    cells = list[tuple[int, int, str]]()
    for symbol in symbols:
        size = max(1, len(symbol))
        if column and column + size > COLUMNS:
            column, row = 0, row + 1
        cells.append((column, row, symbol))
        column += size
    return cells


def _style(moments: list[int], frames: int) -> str:
    """One pair of animations for each moment."""
    total = SECONDS + HOLD
    lines = ["<style>text{font:18px ui-monospace,Menlo,Consolas,monospace}.d{fill:#5b6475}"]
    for moment in moments:
        at = 100 * (0.6 + (SECONDS - 0.6) * moment / frames) / total
        lines.append(f"@keyframes d{moment}{{0%,{at:.1f}%{{opacity:1}}{at + 0.1:.1f}%,100%{{opacity:0}}}}")
        lines.append(f"@keyframes a{moment}{{0%,{at:.1f}%{{opacity:0}}{at + 0.1:.1f}%,100%{{opacity:1}}}}")
        bright = f"{at + 0.1:.1f}%{{fill:#ffd166}}{at + 8:.1f}%,100%{{fill:#e8ebf2}}"
        lines.append(f"@keyframes c{moment}{{0%,{at:.1f}%{{fill:#7d879a}}{bright}}}")
        lines += [f".{kind}{moment}{{animation:{kind}{moment} {total}s infinite}}" for kind in "dac"]
    return "\n".join(lines) + "</style>"
