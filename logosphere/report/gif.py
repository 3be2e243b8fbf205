"""Animations as GIF files (extra `plot`)."""

import io
from typing import TYPE_CHECKING

from logosphere.errors import UserError
from logosphere.report.animated_svg import COLUMNS, lay_out
from logosphere.report.animation import Animation, apply_changes

if TYPE_CHECKING:
    from PIL import Image, ImageFont

BACKGROUND, HIDDEN, WRITTEN, CHANGED = "#10131a", "#5b6475", "#e8ebf2", "#ffd166"
"""The colours of report/animated_svg.py."""
SIZE, WIDTH, HEIGHT, MARGIN = 18, 11, 26, 16
SECONDS, HOLD, MAX_FRAMES, SHADES = 6.0, 3.0, 96, 9
FONTS = ("DejaVuSansMono.ttf", "LiberationMono-Regular.ttf", "Menlo.ttc", "consola.ttf")
"""Monospaced fonts, the first that is installed is used; otherwise Pillow's own font is set character by character."""


def render_gif(animation: Animation, sample: int = 0) -> bytes:
    """Render one sample as a GIF: dots are hidden, dim symbols are predictions, changed symbols are bright."""
    try:
        from PIL import Image
    except ImportError:
        raise UserError("GIFs need the extra 'plot': pip install 'logosphere[plot]'") from None
    chosen = _choose_frames(len(animation.frames))
    written, guessed = [-1] * animation.length, [-1] * animation.length
    changed, images, font = set[int](), list[Image.Image](), _load_font()
    last = len(animation.frames) - 1
    for number, frame in enumerate(animation.frames):
        changed.update(apply_changes(written, frame[sample]))
        if animation.guesses:
            apply_changes(guessed, animation.guesses[number][sample])
        if number in chosen:
            images.append(_draw_frame(animation, written, guessed, changed if number < last else set(), font))
            changed = set()
    pause = int(1000 * SECONDS / len(images))
    durations = [max(20, pause)] * (len(images) - 1) + [int(1000 * HOLD)]
    file = io.BytesIO()
    images[0].save(file, "GIF", save_all=True, append_images=images[1:], duration=durations, loop=0, optimize=True)
    return file.getvalue()


def _choose_frames(count: int) -> set[int]:
    """Return the numbers of at most MAX_FRAMES frames, evenly spaced, with the first and the last."""
    if count <= MAX_FRAMES:
        return set(range(count))
    return {i * (count - 1) // (MAX_FRAMES - 1) for i in range(MAX_FRAMES)}


def _draw_frame(
    animation: Animation,
    written: list[int],
    guessed: list[int],
    changed: set[int],
    font: "ImageFont.ImageFont | ImageFont.FreeTypeFont",
) -> "Image.Image":
    from PIL import Image, ImageDraw

    visible = [a if a >= 0 else b for a, b in zip(written, guessed, strict=True)]
    cells = lay_out([animation.symbols[symbol] if symbol >= 0 else "·" for symbol in visible])
    rows = max(row for _, row, _ in cells) + 1
    image = Image.new("RGB", (COLUMNS * WIDTH + 2 * MARGIN, rows * HEIGHT + 2 * MARGIN), BACKGROUND)
    draw = ImageDraw.Draw(image)
    for position, (column, row, text) in enumerate(cells):
        colour = HIDDEN if written[position] < 0 else CHANGED if position in changed else WRITTEN
        for i, character in enumerate(text):
            draw.text((MARGIN + (column + i) * WIDTH, MARGIN + row * HEIGHT), character, fill=colour, font=font)
    return image.quantize(palette=_build_palette(), dither=Image.Dither.NONE)


def _build_palette() -> "Image.Image":
    """Build a palette of the text colours and their blends with the background.

    An adaptive palette would lose the few bright symbols.
    """
    from PIL import Image, ImageColor

    background = ImageColor.getrgb(BACKGROUND)
    values = list[int]()
    for colour in (HIDDEN, WRITTEN, CHANGED):
        for shade in range(SHADES + 1):
            blend = zip(background, ImageColor.getrgb(colour), strict=True)
            values += [a + (b - a) * shade // SHADES for a, b in blend]
    palette = Image.new("P", (1, 1))
    palette.putpalette(values)
    return palette


def _load_font() -> "ImageFont.ImageFont | ImageFont.FreeTypeFont":
    from PIL import ImageFont

    for name in FONTS:
        try:
            return ImageFont.truetype(name, SIZE)
        except OSError:
            continue
    return ImageFont.load_default(SIZE)
