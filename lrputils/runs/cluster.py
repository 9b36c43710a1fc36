"""Ray shares out the parts of a run: over the cores or GPUs of one machine, or over a cluster.

A part is a task. A process that runs one keeps the model for its next; the rows come back to the
driver, which writes them, so that there is no shared folder, and a killed driver goes on as a run
without Ray does. That whoever joins the cluster is given work, and another what a lost process had,
is Ray's.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from itertools import islice
from typing import Any

import pandas as pd

from lrputils.data.files import is_path
from lrputils.model.chats import Prompt
from lrputils.model.classifier import Classifier, load_classifier
from lrputils.runs.parts import Here, Measure, Measured, Part, versions

_TRIES = 3  # how often a part may take its process with it
_LOOK = 5.0  # seconds between two looks at what the cluster has


@cache
def _load(
    place: str | None, device: str, prompt: Prompt | None, wanted: tuple[tuple[str, Any], ...]
) -> Classifier:
    """Return the model, which a process of the cluster loads once; refuse another than `wanted`."""
    classifier = load_classifier(place, device=device)
    classifier = classifier.zero_shot(*prompt) if prompt else classifier
    own = {**classifier.parts, **versions(classifier.device.type)}
    if other := [name for name, value in wanted if own.get(name) != value]:
        raise ValueError(
            f"a worker finds another model as {place!r}, or other code, with other "
            f"{', '.join(other)}: put the same files there on every machine"
        )
    return classifier


def _measure(
    measure: Measure, model: tuple[Any, ...], part: Part
) -> tuple[Mapping[str, pd.DataFrame], float]:
    """Return a part's rows, and the seconds that they took."""
    classifier, began = _load(*model), time.monotonic()
    return measure(classifier, part), time.monotonic() - began


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
        todo = iter(parts)
        running: dict[Any, Part] = {}
        with self._connected() as ray:
            gpus = int(self._gpus(ray))
            wanted = {**classifier.parts, **versions("cuda" if gpus else "cpu")}
            model = place, self.device, classifier.prompt, tuple(wanted.items())
            # By default a process ends with its task where that has a GPU, and the model with it.
            how = {"num_cpus": 1, "num_gpus": gpus, "max_calls": 0, "max_retries": _TRIES - 1}
            start = partial(ray.remote(**how)(_measure).remote, ray.put(measure), model)
            while True:
                for part in islice(todo, max(0, self._count(ray) + 1 - len(running))):
                    running[start(part)] = part
                if not running:
                    return
                for answer in ray.wait([*running], timeout=_LOOK)[0]:
                    part = running.pop(answer)
                    try:
                        result = ray.get(answer)
                    except ray.exceptions.RayTaskError as error:
                        raise error.cause from None
                    except ray.exceptions.RayError as error:  # its process is gone
                        died = f"{_TRIES} workers died at part {part.number}"
                        raise ValueError(f"{died}, of memory perhaps: {error}") from error
                    yield part, *result

    def kind(self, classifier: Classifier) -> str:
        """Return the kind of device that workers have."""
        with self._connected() as ray:
            return "cuda" if self._gpus(ray) else "cpu"

    def _count(self, ray: Any) -> int:
        there = ray.cluster_resources()
        return max(1, int(there["GPU" if self._gpus(ray) else "CPU"]))

    def _gpus(self, ray: Any) -> bool:
        return self.device != "cpu" and ray.cluster_resources().get("GPU", 0) >= 1

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report over the network
        # Else a part for which memory is short would be tried without end.
        os.environ.setdefault("RAY_task_oom_retries", str(_TRIES - 1))
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
