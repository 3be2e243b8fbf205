"""Samples as image files: self-playing SVG animations, GIF animations (extra `plot`), and grids of images as PNG."""

import io
import math
import struct
import zlib
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from logosphere.errors import UserError
from logosphere.report.page import Animation, apply_changes

if TYPE_CHECKING:
    from PIL import Image, ImageFont

COLUMNS, SECONDS, HOLD = 64, 6.0, 4.0
WIDTH, HEIGHT, MARGIN = 11, 26, 16


def render_animated_svg(animation: Animation, sample: int = 0) -> str:
    """Render one sample as an SVG: a dot is replaced by the predicted symbol, which turns bright when it is sampled."""
    sampled, symbols = _find_last_changes(animation.frames, animation.length, sample)
    predicted = sampled
    if animation.predictions:
        visible, _ = _find_last_changes(_combine_frames(animation), animation.length, sample)
        predicted = [min(a, b) for a, b in zip(visible, sampled, strict=True)]
    cells = lay_out([animation.symbols[symbol] if symbol >= 0 else " " for symbol in symbols])
    width = COLUMNS * WIDTH + 2 * MARGIN
    height = (cells[-1][1] + 1) * HEIGHT + 2 * MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>Text generated from noise</title>",
        _render_style(sorted({*sampled, *predicted}), len(animation.frames)),
        f'<rect width="{width}" height="{height}" rx="8" fill="#10131a"/>',
    ]
    for (column, row, text), predicted_at, written_at in zip(cells, predicted, sampled, strict=True):
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
    """Return the changes of what is visible: the sampled symbol, or the predicted one where none is sampled."""
    frames = []
    rows = [([-1] * animation.length, [-1] * animation.length) for _ in animation.frames[0]]
    before = [[-1] * animation.length for _ in animation.frames[0]]
    for frame, predictions in zip(animation.frames, animation.predictions, strict=True):
        changed = list[list[int]]()
        for (sampled, predicted_symbols), old, new, prediction in zip(rows, before, frame, predictions, strict=True):
            apply_changes(sampled, new)
            apply_changes(predicted_symbols, prediction)
            visible = [a if a >= 0 else b for a, b in zip(sampled, predicted_symbols, strict=True)]
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


BACKGROUND, HIDDEN, SAMPLED, CHANGED = "#10131a", "#5b6475", "#e8ebf2", "#ffd166"
"""The colours of the animated SVG."""
SIZE, GIF_HOLD, MAX_FRAMES, SHADES = 18, 3.0, 96, 9
FONTS = ("DejaVuSansMono.ttf", "LiberationMono-Regular.ttf", "Menlo.ttc", "consola.ttf")
"""Monospaced fonts, the first that is installed is used; otherwise Pillow's own font is set character by character."""


def render_gif(animation: Animation, sample: int = 0) -> bytes:
    """Render one sample as a GIF: dots are hidden, dim symbols are predictions, changed symbols are bright."""
    try:
        from PIL import Image
    except ImportError:
        raise UserError("GIFs need the extra 'plot': pip install 'logosphere[plot]'") from None
    chosen = _choose_frames(len(animation.frames))
    sampled, predicted_symbols = [-1] * animation.length, [-1] * animation.length
    changed, images, font = set[int](), list[Image.Image](), _load_font()
    last = len(animation.frames) - 1
    for number, frame in enumerate(animation.frames):
        changed.update(apply_changes(sampled, frame[sample]))
        if animation.predictions:
            apply_changes(predicted_symbols, animation.predictions[number][sample])
        if number in chosen:
            images.append(_draw_frame(animation, sampled, predicted_symbols, changed if number < last else set(), font))
            changed = set()
    pause = int(1000 * SECONDS / len(images))
    durations = [max(20, pause)] * (len(images) - 1) + [int(1000 * GIF_HOLD)]
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
    sampled: list[int],
    predicted_symbols: list[int],
    changed: set[int],
    font: "ImageFont.ImageFont | ImageFont.FreeTypeFont",
) -> "Image.Image":
    from PIL import Image, ImageDraw

    visible = [a if a >= 0 else b for a, b in zip(sampled, predicted_symbols, strict=True)]
    cells = lay_out([animation.symbols[symbol] if symbol >= 0 else "·" for symbol in visible])
    rows = max(row for _, row, _ in cells) + 1
    image = Image.new("RGB", (COLUMNS * WIDTH + 2 * MARGIN, rows * HEIGHT + 2 * MARGIN), BACKGROUND)
    draw = ImageDraw.Draw(image)
    for position, (column, row, text) in enumerate(cells):
        colour = HIDDEN if sampled[position] < 0 else CHANGED if position in changed else SAMPLED
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
    for colour in (HIDDEN, SAMPLED, CHANGED):
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


GAP = 1
"""Pixels between images."""


def make_image_grid(tokens: npt.NDArray[np.int64], axes: tuple[int, ...], levels: int) -> npt.NDArray[np.uint8]:
    """Sequences [N, L] as images of height × width (× 3) side by side, [H, W, 3]; level 0 is black."""
    if len(axes) not in (2, 3) or (len(axes) == 3 and axes[2] not in (1, 3)) or math.prod(axes) != tokens.shape[1]:
        raise UserError(f"Sequences of {tokens.shape[1]} tokens are no images of {'x'.join(map(str, axes))} pixels.")
    height, width, channels = (*axes, 1)[:3]
    images = (tokens * 255 // max(1, levels - 1)).astype(np.uint8).reshape(-1, height, width, channels)
    images = np.broadcast_to(images, (*images.shape[:3], 3)) if channels == 1 else images
    columns = math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    canvas = np.full((rows * (height + GAP) + GAP, columns * (width + GAP) + GAP, 3), 96, dtype=np.uint8)
    for number, image in enumerate(images):
        row, column = divmod(number, columns)
        top, left = row * (height + GAP) + GAP, column * (width + GAP) + GAP
        canvas[top : top + height, left : left + width] = image
    return canvas


def encode_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """An image [H, W, 3] as PNG (ISO/IEC 15948): 8 bits per colour, no filter."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width, _ = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
