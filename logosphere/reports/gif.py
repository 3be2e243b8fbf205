"""Text condensing out of noise as an animated GIF, for slides and chats that play nothing else (extra `plot`)."""

import io
from typing import TYPE_CHECKING

from logosphere.errors import UserError
from logosphere.reports.board import Film
from logosphere.reports.condensing import COLUMNS, laid

if TYPE_CHECKING:
    from PIL import Image, ImageFont

PAPER, FAINT, PLAIN, FRESH = "#10131a", "#5b6475", "#e8ebf2", "#ffd166"
"""The colours of the drawing in reports/condensing.py."""
SIZE, WIDTH, HEIGHT, MARGIN = 18, 11, 26, 16
SECONDS, HOLD, MOST_FRAMES, SHADES = 6.0, 3.0, 96, 9
FONTS = ("DejaVuSansMono.ttf", "LiberationMono-Regular.ttf", "Menlo.ttc", "consola.ttf")
"""Where one of these is installed letters have one width; else Pillow's own font is set letter by letter."""


def gif(film: Film, sample: int = 0) -> bytes:
    """One sample of a film: dots are not written yet, faint letters are guesses, what has just changed is bright."""
    try:
        from PIL import Image
    except ImportError:
        raise UserError("GIFs need the extra 'plot': pip install 'logosphere[plot]'") from None
    chosen = _thinned(list(range(len(film.frames))))
    shown, guessed = [-1] * film.length, [-1] * film.length
    fresh, pages, font = set[int](), list[Image.Image](), _font()
    last = len(film.frames) - 1
    for number, frame in enumerate(film.frames):
        changes = frame[sample]
        for place, symbol in zip(changes[::2], changes[1::2], strict=True):
            shown[place] = symbol
            fresh.add(place)
        if film.guesses:
            would = film.guesses[number][sample]
            for place, symbol in zip(would[::2], would[1::2], strict=True):
                guessed[place] = symbol
        if number in chosen:
            pages.append(_page(film, shown, guessed, fresh if number < last else set(), font))
            fresh = set()
    pause = int(1000 * SECONDS / len(pages))
    pauses = [max(20, pause)] * (len(pages) - 1) + [int(1000 * HOLD)]
    file = io.BytesIO()
    pages[0].save(file, "GIF", save_all=True, append_images=pages[1:], duration=pauses, loop=0, optimize=True)
    return file.getvalue()


def _thinned(numbers: list[int]) -> set[int]:
    if len(numbers) <= MOST_FRAMES:
        return set(numbers)
    return {numbers[i * (len(numbers) - 1) // (MOST_FRAMES - 1)] for i in range(MOST_FRAMES)}


def _page(
    film: Film,
    shown: list[int],
    guessed: list[int],
    fresh: set[int],
    font: "ImageFont.ImageFont | ImageFont.FreeTypeFont",
) -> "Image.Image":
    """One frame."""
    from PIL import Image, ImageDraw

    read = [a if a >= 0 else b for a, b in zip(shown, guessed, strict=True)]
    cells = laid([film.symbols[symbol] if symbol >= 0 else "·" for symbol in read])
    rows = max(row for _, row, _ in cells) + 1
    page = Image.new("RGB", (COLUMNS * WIDTH + 2 * MARGIN, rows * HEIGHT + 2 * MARGIN), PAPER)
    pen = ImageDraw.Draw(page)
    for place, (column, row, letters) in enumerate(cells):
        colour = FAINT if shown[place] < 0 else FRESH if place in fresh else PLAIN
        for i, letter in enumerate(letters):
            pen.text((MARGIN + (column + i) * WIDTH, MARGIN + row * HEIGHT), letter, fill=colour, font=font)
    return page.quantize(palette=_palette(), dither=Image.Dither.NONE)


def _palette() -> "Image.Image":
    """The colours of letters, and shades of each on the paper that smooth them: a palette chosen by how much of each
    there is would lose the few bright letters."""
    from PIL import Image, ImageColor

    paper = ImageColor.getrgb(PAPER)
    values = list[int]()
    for colour in (FAINT, PLAIN, FRESH):
        for share in range(SHADES + 1):
            values += [a + (b - a) * share // SHADES for a, b in zip(paper, ImageColor.getrgb(colour), strict=True)]
    palette = Image.new("P", (1, 1))
    palette.putpalette(values)
    return palette


def _font() -> "ImageFont.ImageFont | ImageFont.FreeTypeFont":
    from PIL import ImageFont

    for name in FONTS:
        try:
            return ImageFont.truetype(name, SIZE)
        except OSError:
            continue
    return ImageFont.load_default(SIZE)
