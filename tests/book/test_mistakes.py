"""What a user can get wrong with `execute`, and the one sentence each mistake gets."""

from pathlib import Path

import pytest

from lrputils.__main__ import main
from lrputils.book import execution
from lrputils.book.layout import find_book

COLUMNS = "text_column"
# Arguments after `execute`, what the sentence says of it; some more are in tests/net/surface.
MISTAKES = [
    ("3 --out FILE", "FILE cannot be written: Not a directory"),
    ("3 --out FILE/run", "FILE/run cannot be written: Not a directory"),
    ("3 --out CHAPTERS", "is where the committed twins are; name another folder"),
    ("3 --out RUN -p model=FOLDER/none", "03_sst: model='FOLDER/none': there is no such file or"),
    ("3 --out RUN -p model=FOLDER", "03_sst: model='FOLDER' holds no config.json"),
    ("3 --out RUN -p model=SPEAKS", "03_sst: model='SPEAKS' is a language model, and a classifier"),
    ("3 --out RUN -p model=ADAPTER", "03_sst: model='ADAPTER' holds a PEFT adapter: load it"),
    ("3 --out RUN -p model=some/bert", "'some/bert' is not a folder here, is not in the local"),
    ("3 --out RUN -p dataset=some/texts", "'some/texts' is not a folder here, is not in the local"),
    ("3 --out RUN -p dataset=none.csv", "03_sst: dataset='none.csv': there is no such file"),
    ("3 --out RUN -p dataset=TABLE", COLUMNS),
    ("3 --out RUN -p split=test", "has no split 'test'"),
    ("3 --out RUN -p limit=-3", "03_sst: limit=-3 must be 1 or more"),
    ("3 --out RUN -p limit=two", "03_sst: limit = 'two' is of type str, wanted: int"),
    ("3 --out RUN -p readout=bogus", "readout='bogus' must be one of word, sum, post-norm"),
    ("3 --out RUN -p device=gpu", "03_sst: device='gpu' must be auto, cpu, cuda, cuda:N or mps"),
    ("3 --out RUN -p device=cuda:99", "03_sst: device='cuda:99' cannot be used here"),
    ("4 --out RUN -p max_tokens=1", "04_imdb: max_tokens=1 must be 3 or more"),
    ("4 --out RUN -p rows=FOLDER", "04_imdb: rows='FOLDER' holds no run: `lrputils evaluate --"),
    ("10 --out RUN -p scores=FOLDER", "10_audit: scores='FOLDER' is no file"),
    ("3 --out RUN -p template=text", "template='text' must be a prompt with {text} in it, once"),
    ("4 --out RUN -p chunk=0", "04_imdb: chunk=0 must be 1 or more"),
    ("2 --out RUN -p seeds=0", "02_linear_attention: seeds=0 must be 1 or more"),
    ("1 --out RUN -p max_factors=2", "max_factors=2 must be 3 or more"),
    ("intro --out RUN -p limit=2", "intro has no parameter 'limit'; it has: none"),
    ("3 --profile YAML", "03_sst: limit=0 must be 1 or more"),
    ("3 --out RUN -p limit", "name=value"),
    ("3 --profile quick", "no profile 'quick'; the profiles are: offline"),
]


@pytest.fixture
def places(tmp_path, monkeypatch, no_hub):
    """What the capitals in a row stand for; no kernel may start."""

    def started(*_, **__):
        raise AssertionError("a kernel was started")

    monkeypatch.setattr(execution, "ProcessPoolExecutor", started)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text("{}")
    (tmp_path / "speaks").mkdir()
    (tmp_path / "speaks/config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    (tmp_path / "table.csv").write_text("film,stars\nDull,1\n")
    (tmp_path / "mine.yml").write_text("03_sst: {limit: 0}\n")
    monkeypatch.chdir(find_book().root)
    return {
        "FILE": str(tmp_path / "file"),
        "FOLDER": str(tmp_path / "folder"),
        "ADAPTER": str(tmp_path / "adapter"),
        "SPEAKS": str(tmp_path / "speaks"),
        "TABLE": str(tmp_path / "table.csv"),
        "YAML": str(tmp_path / "mine.yml"),
        "CHAPTERS": "chapters",
        "RUN": str(tmp_path / "run"),
    }


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES, ids=lambda text: text[:40])
def test_a_mistake_gets_one_sentence_before_a_kernel_starts(places, capsys, arguments, sentence):
    for capitals, path in places.items():
        arguments = arguments.replace(capitals, path)
        sentence = sentence.replace(capitals, path)
    assert main(["execute", *arguments.split()]) == 1
    said = capsys.readouterr().err
    assert said.startswith("lrputils: ")
    assert said.count("\n") == 1
    assert sentence in said
    assert not Path(places["RUN"]).exists()
