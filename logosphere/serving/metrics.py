"""Figures of a running server in the text format of Prometheus."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the histogram of durations."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters since the start."""

    def __init__(self) -> None:
        self.requests = Counter[tuple[str, int]]()
        self.buckets = Counter[float]()
        self.durations, self.seconds = 0, 0.0
        self.tokens, self.evaluations, self.texts = Counter[str](), Counter[str](), Counter[str]()
        self.batches, self.batch_rows, self.batch_seconds = (
            Counter[str](),
            Counter[str](),
            defaultdict[str, float](float),
        )
        self.rejected = self.cancelled = 0

    def observe_request(self, route: str, status: int) -> None:
        self.requests[route, status] += 1

    def observe_duration(self, seconds: float) -> None:
        """Count the seconds of an answered request for texts."""
        self.durations, self.seconds = self.durations + 1, self.seconds + seconds
        for bound in SECONDS:
            self.buckets[bound] += seconds <= bound

    def observe_row(self, model: str, tokens: int, evaluations: int) -> None:
        self.texts[model] += 1
        self.tokens[model] += tokens
        self.evaluations[model] += evaluations

    def observe_batch(self, model: str, rows: int, seconds: float) -> None:
        self.batches[model] += 1
        self.batch_rows[model] += rows
        self.batch_seconds[model] += seconds

    def render(self, waiting: int, running: int) -> str:
        """All figures; `waiting` and `running` are numbers of texts."""
        lines = _describe("requests_total", "counter", "Answered requests by route and status.")
        lines += [
            f'logosphere_requests_total{{route="{route}",status="{status}"}} {count}'
            for (route, status), count in sorted(self.requests.items())
        ]
        lines += _describe("request_seconds", "histogram", "Seconds of requests for texts.")
        lines += [f'logosphere_request_seconds_bucket{{le="{bound:g}"}} {self.buckets[bound]}' for bound in SECONDS]
        lines.append(f'logosphere_request_seconds_bucket{{le="+Inf"}} {self.durations}')
        lines += [
            f"logosphere_request_seconds_sum {self.seconds:.6f}",
            f"logosphere_request_seconds_count {self.durations}",
        ]
        counters: list[tuple[str, str, Mapping[str, float]]] = [
            ("texts_total", "Finished texts.", self.texts),
            ("generated_tokens_total", "Tokens of finished texts.", self.tokens),
            ("network_evaluations_total", "Network evaluations of finished texts.", self.evaluations),
            ("batches_total", "Batches.", self.batches),
            ("batch_texts_total", "Texts of all batches.", self.batch_rows),
            ("batch_seconds_total", "Seconds of all batches.", self.batch_seconds),
        ]
        for name, about, values in counters:
            lines += _describe(name, "counter", about)
            lines += [
                f'logosphere_{name}{{model="{_escape(model)}"}} {value:g}' for model, value in sorted(values.items())
            ]
        singles: list[tuple[str, str, str, float]] = [
            ("rejected_total", "counter", "Requests refused because the queue was full.", self.rejected),
            ("cancelled_total", "counter", "Requests whose client left before the end.", self.cancelled),
            ("waiting_texts", "gauge", "Texts in the queue.", waiting),
            ("running_texts", "gauge", "Texts that are sampled now.", running),
            ("resident_memory_bytes", "gauge", "Memory of this process; 0 where it is not known.", _resident_bytes()),
        ]
        for name, kind, about, value in singles:
            lines += [*_describe(name, kind, about), f"logosphere_{name} {value:.0f}"]
        return "\n".join(lines) + "\n"


def _describe(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP logosphere_{name} {about}", f"# TYPE logosphere_{name} {kind}"]


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _resident_bytes() -> int:
    """The resident memory of this process, where the system says it."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)
