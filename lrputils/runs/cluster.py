"""Ray shares out the parts of a run: over the cores or GPUs of one machine, or over a cluster.

A worker is an actor with the model in its memory. It is sent a part's texts and sends back its
rows, which the driver writes; so there is no shared folder, and a killed driver goes on as a run
without Ray does. Whoever joins the cluster is given work, and what a lost worker had is given to
another.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from typing import Any

import pandas as pd

from lrputils.data.files import is_path
from lrputils.model.chats import Prompt
from lrputils.model.classifier import Classifier, load_classifier
from lrputils.runs.parts import Here, Measure, Measured, Part, versions

_TRIES = 3  # how often a part may take its worker with it
_LOOK = 5.0  # seconds between two looks at what the cluster has


class _Worker:
    """A process of the cluster."""

    def load(
        self, place: str | None, device: str, prompt: Prompt, wanted: Mapping[str, Any]
    ) -> None:
        classifier = load_classifier(place, device=device)
        self.classifier = classifier.zero_shot(*prompt) if prompt else classifier
        own = {**self.classifier.parts, **versions(self.classifier.device.type)}
        if other := [name for name in own if own[name] != wanted[name]]:
            raise ValueError(
                f"a worker finds another model as {place!r}, or other code, with other "
                f"{', '.join(other)}: put the same files there on every machine"
            )

    def measure(self, measure: Measure, part: Part) -> tuple[Mapping[str, pd.DataFrame], float]:
        began = time.monotonic()
        return measure(self.classifier, part), time.monotonic() - began


@dataclass(frozen=True)
class Ray(Here):
    """Measures parts on a cluster: an engine of `lrputils.runs.parts.measure_parts`.

    Attributes:
        model: what every worker loads: a folder that is on all machines, or a hub name.
        device: where it is put; "auto" is a GPU for each worker if the cluster has some.
        address: of the cluster, "auto" or "ray://…"; without one a cluster is started here.

    Raises:
        ImportError: Ray is not installed.
    """

    model: str | None = None
    device: str = "auto"
    address: str | None = None

    def __post_init__(self) -> None:
        if find_spec("ray") is None:
            raise ImportError("Ray is not installed: pip install ray")

    def __call__(self, classifier: Classifier, measure: Measure, parts: Iterable[Part]) -> Measured:
        """Yield each part with its rows and seconds as it is done, in any order."""
        place = self.model and (os.path.abspath(self.model) if is_path(self.model) else self.model)
        todo, lost = iter(parts), Counter[int]()
        with self._connected() as ray:
            gpus, running = int(self._gpus(ray)), {}  # what is awaited → worker, its part or None
            wanted = {**classifier.parts, **versions("cuda" if gpus else "cpu")}
            start = ray.remote(_Worker).options(num_cpus=1, num_gpus=gpus).remote
            ahead = [*islice(todo, 1)]
            while ahead or any(part for _, part in running.values()):
                idle = self._count(ray) - len(running)
                loading = sum(part is None for _, part in running.values())
                ahead += islice(todo, max(0, idle + loading - len(ahead)))
                for _ in range(min(idle, len(ahead) - loading)):
                    worker = start()
                    loads = worker.load.remote(place, self.device, classifier.prompt, wanted)
                    running[loads] = worker, None
                for answer in ray.wait([*running], timeout=_LOOK)[0]:
                    worker, part = running.pop(answer)
                    try:
                        result = ray.get(answer)
                    except ray.exceptions.RayTaskError as error:
                        raise error.cause from None
                    except ray.exceptions.RayError as error:  # the worker is gone
                        number = -1 if part is None else part.number
                        lost[number] += 1
                        if lost[number] == _TRIES:
                            doing = f"at part {number}" if part else "while they loaded the model"
                            said = f"{_TRIES} workers died {doing}, of memory perhaps: {error}"
                            raise ValueError(said) from error
                        ahead += [part] if part else []
                        continue
                    if part:
                        yield part, *result
                    ahead = ahead or [*islice(todo, 1)]
                    if ahead:
                        part = ahead.pop(0)
                        running[worker.measure.remote(measure, part)] = worker, part

    def kind(self, classifier: Classifier) -> str:
        """Return the kind of device that workers have."""
        with self._connected() as ray:
            return "cuda" if self._gpus(ray) else "cpu"

    def count(self) -> int:
        """Return how many workers the cluster has room for now."""
        with self._connected() as ray:
            return self._count(ray)

    def _count(self, ray: Any) -> int:
        there = ray.cluster_resources()
        return max(1, int(there["GPU" if self._gpus(ray) else "CPU"]))

    def _gpus(self, ray: Any) -> bool:
        return self.device != "cpu" and ray.cluster_resources().get("GPU", 0) >= 1

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report over the network
        import ray

        here = {"include_dashboard": False, "object_store_memory": 2**28}
        quiet = {"log_to_driver": False, "logging_level": "error"}
        host, _, port = (self.address or "").removeprefix("ray://").rpartition(":")
        try:
            if port.isdigit():  # where nobody answers, Ray would wait for minutes
                socket.create_connection((host, int(port)), _LOOK).close()
            ray.init(**({"address": self.address} if self.address else here), **quiet)
        except OSError as error:
            raise ConnectionError(f"no Ray cluster answers at {self.address!r}: {error}") from error
        try:
            yield ray
        finally:
            ray.shutdown()
