"""The reviews written for the book: the files keep their promises, and the card tells the truth."""

import csv
import itertools
import re
from importlib.resources import files

import pytest

FOLDER = files("lrputils") / "assets" / "reviews"
COLUMNS = ["id", "text", "label", "phenomenon", "subject"]
SHAPES = {"short": (240, 6, 30), "long": (48, 120, 260)}  # rows, fewest and most words
PHENOMENA = [
    "plain",
    "negation",
    "double-negation",
    "contrast",
    "irony",
    "intensifier",
    "comparison",
    "late-turn",
    "filler",
]
SUBJECTS = ["film", "book", "series", "concert", "game", "restaurant"]
CELLS = list(itertools.product(("short", "long"), ("0", "1")))


def read(kind):
    with (FOLDER / f"{kind}.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def words(text):
    return re.findall(r"[a-z0-9]+(?:['’][a-z]+)*", text.lower())


def card():
    return (FOLDER / "README.md").read_text(encoding="utf-8")


def card_table(section):
    """Rows of the tables under a heading, keyed by their first cell."""
    body = card().split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("| ").split(" | ") for line in body.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in rows[2:]}


REVIEWS = {kind: read(kind) for kind in SHAPES}
ALL = [row for rows in REVIEWS.values() for row in rows]


@pytest.mark.parametrize("kind", SHAPES)
def test_files_have_the_promised_shape(kind):
    rows, (count, fewest, most) = REVIEWS[kind], SHAPES[kind]
    assert list(rows[0]) == COLUMNS
    width = len(str(count))
    assert [row["id"] for row in rows] == [f"{kind[0]}{i:0{width}d}" for i in range(1, count + 1)]
    outside = [row["id"] for row in rows if not fewest <= len(row["text"].split()) <= most]
    assert outside == []


@pytest.mark.parametrize(
    ("section", "column", "values"),
    [("Phenomena", "phenomenon", PHENOMENA), ("Subjects", "subject", SUBJECTS)],
)
def test_card_counts_match_the_files(section, column, values):
    table = card_table(section)
    assert list(table) == list(values)
    for value, cells in table.items():
        counted = [
            sum(row["label"] == label and row[column] == value for row in REVIEWS[kind])
            for kind, label in CELLS
        ]
        assert [int(cell) for cell in cells[-4:]] == counted, value


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize(("column", "name"), [("SST-2", "minilm-sst2"), ("IMDB", "minilm-imdb")])
def test_card_accuracies_hold_for_the_classifiers(models_dir, kind, column, name):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = models_dir / name
    if not folder.is_dir():
        pytest.skip(f"no folder {name} among the test models")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    right = 0
    rows = sorted(REVIEWS[kind], key=lambda row: len(row["text"]))  # little padding
    for start in range(0, len(rows), 16):
        batch = rows[start : start + 16]
        texts = [row["text"] for row in batch]
        inputs = tokenizer(texts, padding=True, return_tensors="pt")
        with torch.inference_mode():
            predicted = model(**inputs).logits.argmax(-1).tolist()
        right += sum(
            int(row["label"]) == guess for row, guess in zip(batch, predicted, strict=True)
        )
    printed = re.search(rf"\| MiniLM, 6 layers, {column} \| ([\d.]+)% \| ([\d.]+)% \|", card())
    accuracy = float(printed[1 if kind == "short" else 2])
    # One text may sit on the boundary and fall the other way on another processor.
    assert accuracy == pytest.approx(100 * right / len(REVIEWS[kind]), abs=150 / len(REVIEWS[kind]))
