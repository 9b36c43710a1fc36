"""Record the softmax errors of a classifier: `python -m lrputils.softmax_errors --out DIR …`."""

from __future__ import annotations

import argparse
import shlex
import time
from pathlib import Path

from lrputils import results
from lrputils.data.texts import load_texts
from lrputils.models import load_classifier
from lrputils.softmax_errors.measures import MEASURES, layer_errors


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write rows and provenance into the folder named by `--out`."""
    parser = argparse.ArgumentParser(prog="python -m lrputils.softmax_errors", description=__doc__)
    parser.add_argument("--model", help="folder or hub name; the embedded classifier if not given")
    parser.add_argument("--dataset", help="file, folder or hub name; our reviews if not given")
    parser.add_argument("--split", help="of the data set")
    parser.add_argument("--limit", type=int, help="how many texts; all if not given")
    parser.add_argument("--seed", type=int, help="shuffle before the limit; no shuffling without")
    parser.add_argument("--max-length", type=int, help="cut longer texts to so many tokens")
    parser.add_argument("--batch-size", type=int, default=16, help="texts a batch")
    parser.add_argument("--out", required=True, help="as results/softmax/NAME-OF-THE-MODEL")
    chosen = parser.parse_args(arguments)
    classifier = load_classifier(chosen.model)
    texts = load_texts(chosen.dataset, split=chosen.split, limit=chosen.limit, seed=chosen.seed)
    began = time.monotonic()
    rows = layer_errors(
        classifier,
        texts,
        batch_size=chosen.batch_size,
        max_length=chosen.max_length,
        truncate=True,
    )
    parameters = {name: _local(value) for name, value in vars(chosen).items() if name != "out"}
    facts = results.provenance(
        command=_command(parameters),
        parameters=parameters,
        seconds=time.monotonic() - began,
        device=classifier.device,
        model={"name": classifier.name, "identity": classifier.identity},
        data={"name": texts.name, "identity": texts.identity, "texts": len(texts)},
    )
    # Four decimals: a tenth of what another processor moves them by.
    rows[list(MEASURES)] = rows[list(MEASURES)].astype("float32").round(4)
    results.write(chosen.out, rows.drop(columns="position"), facts)


def _local(value: object) -> object:
    """A parameter; of a path only its last two parts, since the rest is one machine's."""
    if isinstance(value, str) and Path(value).exists():
        return "/".join(Path(value).resolve().parts[-2:])
    return value


def _command(parameters: dict[str, object]) -> str:
    flags = {f"--{name.replace('_', '-')}": value for name, value in parameters.items()}
    words = [str(w) for flag, value in flags.items() if value is not None for w in (flag, value)]
    return shlex.join(["python", "-m", "lrputils.softmax_errors", *words])


if __name__ == "__main__":
    main()
