"""Samples as a grid of images in one PNG, encoded without an image library."""

import math
import struct
import zlib

import numpy as np
import numpy.typing as npt

from logosphere.errors import UserError

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
