"""What an installed wheel must do, from a folder without a clone: `python -I wheel_check.py`."""

import csv
import subprocess
import sys
from pathlib import Path

import lrputils as lrp

TEXTS = ["a film that is never dull", "slow, loud and far too long", "the plot is not bad at all"]


def command(*arguments: str) -> str:
    """Run `lrputils …` in a process of its own; return what it says."""
    line = [str(Path(sys.executable).with_name("lrputils")), *arguments]
    run = subprocess.run(line, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {run.stderr}")
    return run.stdout


def main() -> None:
    """Load, attribute, compare, and call the verbs that this version has."""
    clf = lrp.load_classifier()
    inputs = clf.encode(TEXTS)
    loo = lrp.leave_one_out(clf, inputs)
    for method in ("attnlrp", "cp-lrp", "mask-gradient"):
        scores = lrp.attribute(clf, inputs, method)
        r = lrp.pearson(scores, loo, where=inputs.content_mask).mean()
        assert scores.shape == loo.shape, method
        print(f"{method}: r = {r:.2f}")
    said = command("--help")
    if "explain" in said:
        assert "dull" in command("explain", TEXTS[0])
    if "audit" in said:
        rows = [("text", "label"), *((text, i % 2) for i, text in enumerate(TEXTS))]
        with Path("texts.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
        command("audit", "--dataset", "texts.csv", "--out", "audit")
    print(f"lrputils {lrp.__version__} works from {Path(lrp.__file__).parent}")


if __name__ == "__main__":
    main()
