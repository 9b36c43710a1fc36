"""Ray, for real: `make cluster` runs this file in an environment that has it.

Two nodes on this machine, with a worker each. Whatever dies, the rows are those of one process.
"""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from ray.cluster_utils import Cluster

from lrputils import __main__ as command_line
from lrputils.data.texts import stream_texts
from lrputils.model.classifier import EMBEDDED, load_classifier
from lrputils.runs import datasets
from lrputils.runs.cluster import Ray
from lrputils.runs.parts import Here
from lrputils.runs.settings import Settings

ROOT = Path(__file__).parents[2]
COMMON = ["--methods", "attnlrp", "--limit", "12", "--part-size", "2"]
COMMON += ["--device", "cpu", "--quiet"]
SETTINGS = Settings(methods=("attnlrp",), part_size=2)


@pytest.fixture(scope="module", autouse=True)
def environment():
    """What workers inherit: this folder's modules, a thread each, a cluster for this user alone."""
    told = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    told["RAY_worker_niceness"] = "0"  # Ray's own 15 waits for whatever else runs here
    with pytest.MonkeyPatch.context() as patch:
        for name, value in told.items():
            patch.setenv(name, value)
        yield


ROOM = {"num_cpus": 1, "object_store_memory": 2**27}


@pytest.fixture(scope="module")
def head(environment):
    cluster = Cluster(initialize_head=True, head_node_args={**ROOM, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


@pytest.fixture
def cluster(head):
    """A head with room for one worker; nodes that a test adds go with it."""
    yield head
    for node in [*head.worker_nodes]:
        head.remove_node(node)


@pytest.fixture(scope="module")
def evaluate(environment):
    classifier = load_classifier(device="cpu")
    how = {"settings": SETTINGS, "parameters": {"limit": 12}, "quiet": True}
    texts = stream_texts(limit=12)
    return partial(datasets.evaluate_dataset, classifier, texts=texts, **how)


@pytest.fixture(scope="module")
def alone(evaluate, tmp_path_factory):
    return evaluate(out=tmp_path_factory.mktemp("alone"))


def assert_rows(out, expected):
    pd.testing.assert_frame_equal(datasets.read(out).rows, datasets.read(expected).rows)


def test_two_hundred_texts_by_ray_and_one_process(tmp_path):
    common = [*COMMON[:2], "--limit", "200", "--max-length", "16", *COMMON[-3:]]
    for name, more in (("one", []), ("ray", ["--engine", "ray"])):
        line = [sys.executable, "-m", "lrputils", "evaluate", *common, *more]
        subprocess.run([*line, "--out", str(tmp_path / name)], check=True)
    assert_rows(tmp_path / "ray", tmp_path / "one")


def test_a_worker_is_lost_in_a_part(cluster, evaluate, alone, tmp_path, monkeypatch):
    marker, real, out = tmp_path / "died", datasets.measure_part, tmp_path / "out"

    def dying(*given):
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given)

    monkeypatch.setattr(datasets, "measure_part", dying)
    assert_rows(evaluate(out=out, engine=Ray(device="cpu", address=cluster.address)), alone)
    assert marker.exists()


def test_a_node_comes_and_another_goes(cluster, evaluate, alone, tmp_path):
    engine, second, kept = Ray(device="cpu", address=cluster.address), cluster.add_node(**ROOM), []
    cluster.wait_for_nodes()

    class Watched(Here):
        def __call__(self, *given):
            for part, *measured in engine(*given):
                yield part, *measured
                kept.append(part.number)
                if len(kept) == 1:
                    cluster.remove_node(second)
                    cluster.add_node(**ROOM)

    assert_rows(evaluate(out=tmp_path / "out", engine=Watched()), alone)
    assert len(kept) == len({*kept}) == 6


def test_the_driver_is_killed_and_started_again(cluster, alone, tmp_path):
    out = tmp_path / "out"
    line = [sys.executable, "-m", "lrputils", "evaluate", *COMMON, "--out", str(out)]
    line += ["--engine", "ray", "--address", cluster.address]
    with subprocess.Popen(line) as driver:
        while not [*out.glob("rows/*/*.parquet")] and driver.poll() is None:
            time.sleep(0.02)
        driver.kill()
    assert 0 < len([*out.glob("rows/*/loo-*.parquet")]) < 6
    subprocess.run(line, check=True)
    assert_rows(out, alone)


def test_a_model_that_workers_do_not_have_is_said_once(cluster, tmp_path, evaluate):
    engine = Ray(str(tmp_path / "gone"), "cpu", cluster.address)
    with pytest.raises(FileNotFoundError, match="gone") as caught:
        evaluate(out=tmp_path / "out", engine=engine)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "out").exists()
    (tmp_path / "other").mkdir()
    for path in EMBEDDED.iterdir():
        (tmp_path / "other" / path.name).write_bytes(path.read_bytes())
    config = tmp_path / "other" / "config.json"
    config.write_text(config.read_text().replace('"gelu"', '"relu"'))
    engine = Ray(str(tmp_path / "other"), "cpu", cluster.address)
    with pytest.raises(ValueError, match="with other configuration: put the same files there"):
        evaluate(out=tmp_path / "out", engine=engine)


def test_a_worker_that_always_dies_is_given_up(cluster, tmp_path, evaluate, monkeypatch):
    def dying(*given):
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(datasets, "measure_part", dying)
    with pytest.raises(ValueError, match=r"3 workers died at part \d, of memory perhaps"):
        evaluate(out=tmp_path / "out", engine=Ray(device="cpu", address=cluster.address))


def test_a_cluster_that_is_not_there_is_refused(tmp_path, capsys):
    line = [*COMMON, "--engine", "ray", "--address", "127.0.0.1:1", "--out", str(tmp_path)]
    assert command_line.main(["evaluate", *line]) == 1
    assert "no Ray cluster answers at '127.0.0.1:1'" in capsys.readouterr().err
