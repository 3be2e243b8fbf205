"""Text condensing out of noise as an animated drawing that plays in any browser, also inside a README."""

from html import escape

from logosphere.reports.board import Film

COLUMNS, SECONDS, HOLD = 64, 6.0, 4.0
WIDTH, HEIGHT, MARGIN = 11, 26, 16


def condensing(film: Film, sample: int = 0) -> str:
    """One sample of a film: each dot goes, and its letter comes bright and settles, when it is last written."""
    born, symbols = [0] * film.length, [-1] * film.length
    for moment, frame in enumerate(film.frames, start=1):
        changes = frame[sample]
        for place, symbol in zip(changes[::2], changes[1::2], strict=True):
            born[place], symbols[place] = moment, symbol
    cells = laid([film.symbols[symbol] if symbol >= 0 else " " for symbol in symbols])
    width = COLUMNS * WIDTH + 2 * MARGIN
    height = (cells[-1][1] + 1) * HEIGHT + 2 * MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>Text condensing out of noise</title>",
        _style(sorted(set(born)), len(film.frames)),
        f'<rect width="{width}" height="{height}" rx="8" fill="#10131a"/>',
    ]
    for (column, row, letters), moment in zip(cells, born, strict=True):
        at = f'x="{MARGIN + column * WIDTH}" y="{MARGIN + (row + 0.72) * HEIGHT:.0f}"'
        lines.append(f'<text {at} class="d d{moment}">·</text>')
        if letters.strip():
            lines.append(f'<text {at} class="c c{moment}">{escape(letters)}</text>')
    return "\n".join([*lines, "</svg>", ""])


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
    lines = ["<style>text{font:18px ui-monospace,Menlo,Consolas,monospace}.d{fill:#5b6475}.c{fill:#e8ebf2}"]
    for moment in moments:
        at = 100 * (0.6 + (SECONDS - 0.6) * moment / frames) / total
        lines.append(f"@keyframes d{moment}{{0%,{at:.1f}%{{opacity:1}}{at + 0.1:.1f}%,100%{{opacity:0}}}}")
        bright = f"{at + 0.1:.1f}%{{opacity:1;fill:#ffd166}}{at + 8:.1f}%,100%{{opacity:1;fill:#e8ebf2}}"
        lines.append(f"@keyframes c{moment}{{0%,{at:.1f}%{{opacity:0}}{bright}}}")
        lines.append(
            f".d{moment}{{animation:d{moment} {total}s infinite}}.c{moment}{{animation:c{moment} {total}s infinite}}"
        )
    return "\n".join(lines) + "</style>"
