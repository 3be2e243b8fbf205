"""Jobs: a text is written in a thread of its own, its moments go to whoever listens, and it stops when nobody does."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import torch

from logosphere.errors import UserError
from logosphere.sampling.samplers import sampler
from logosphere.sampling.trajectory import Moment, Recorder
from logosphere.sampling.walk import Frame, generate
from logosphere.studio.shelf import Book
from logosphere.studio.wishes import Wish, as_command, as_python, fixed

Event = tuple[str, dict[str, Any]]
"""Its name and what it says."""

MOST_JOBS = 4


class Stopped(Exception):
    """Nobody listens any more."""


class Busy(Exception):
    """There are as many jobs as may be."""


class Desk:
    """Takes as many jobs as may run at once."""

    def __init__(self, most: int = MOST_JOBS):
        self.most, self.running = most, 0

    def take(self, book: Book, wish: Wish) -> "Job":
        """Begin a job; it counts until it is left."""
        if self.running >= self.most:
            raise Busy(f"{self.running} texts are being written already; wait for one of them or stop it.")
        self.running += 1
        job = Job(book, wish, asyncio.get_running_loop())
        job.start()
        return job

    def leave(self, job: "Job") -> None:
        """The listener has gone, or has heard all: whatever is still being written is not wanted."""
        job.stop.set()
        self.running -= 1


class Job(threading.Thread):
    """One text, or a few, being written."""

    def __init__(self, book: Book, wish: Wish, loop: asyncio.AbstractEventLoop):
        super().__init__(daemon=True)
        self.book, self.wish, self.loop = book, wish, loop
        self.stop = threading.Event()
        self.events: asyncio.Queue[Event | None] = asyncio.Queue()
        self.told: set[int] = set()
        """Tokens whose symbols the listener knows."""

    async def listen(self) -> AsyncIterator[Event]:
        """The events until the last."""
        while (event := await self.events.get()) is not None:
            yield event

    def run(self) -> None:
        try:
            with self.book.turn:
                self._write()
        except Stopped:
            return
        except UserError as problem:
            self._tell("failed", {"sentence": str(problem)})
        except Exception as problem:
            self._tell("failed", {"sentence": f"This should not happen ({type(problem).__name__}: {problem})."})
        self._put(None)

    def _write(self) -> None:
        book, wish = self.book, self.wish
        if self.stop.is_set():
            raise Stopped
        model, tokenizer = book.model, book.tokenizer
        held = fixed(wish, model, tokenizer)
        way = sampler(model.sampler if wish.sampler == "auto" else wish.sampler, model)
        approximate = held is not None and book.folder.approximates(model)
        begun = {
            "length": model.length,
            "n": wish.n,
            "known": [] if held is None else held.known[0].nonzero()[:, 0].tolist(),
            "approximate": approximate,
            "command": as_command(wish, book.name, held, tokenizer),
            "python": as_python(wish, book.name, held),
        }
        self._tell("begun", begun)
        recorder = Recorder(model)

        def watch(frame: Frame) -> None:
            if self.stop.is_set():
                raise Stopped
            self._tell("moment", self._shown(recorder.see(frame)))

        drawn = generate(
            model,
            n=wish.n,
            steps=wish.steps,
            rng=torch.Generator(model.device).manual_seed(wish.seed),
            known=None if held is None else held.known,
            tokens=None if held is None else held.tokens,
            sampler=way,
            temperature=wish.temperature,
            top_p=wish.top_p,
            renoise_known=approximate,
            watch=watch,
        )
        texts = [tokenizer.decode(row) for row in drawn.tokens.cpu().numpy()]
        self._tell("done", {"texts": texts, "nfe": round(drawn.nfe, 2), "seconds": round(drawn.seconds, 3)})

    def _shown(self, moment: Moment) -> dict[str, Any]:
        fresh = {token for row in moment.tokens for token in row if token >= 0} - self.told
        self.told |= fresh
        return {
            "step": moment.step,
            "steps": moment.steps,
            "time": moment.time,
            "tokens": moment.tokens,
            "changed": moment.changed,
            "sure": moment.sure,
            "places": moment.places,
            "symbols": {token: self.book.tokenizer.symbol(token) for token in sorted(fresh)},
        }

    def _tell(self, name: str, content: dict[str, Any]) -> None:
        self._put((name, content))

    def _put(self, event: Event | None) -> None:
        try:
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)
        except RuntimeError:  # the server has been shut down meanwhile
            self.stop.set()
