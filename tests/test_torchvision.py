import subprocess
import sys

import pytest


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["lrputils", "lrputils.__main__", "lrputils.book.execution"])
def test_what_needs_no_torch_imports_none(module):
    """Each chapter is executed by a process of its own beside its kernel."""
    assert run(f"import sys, {module}; print('torch' in sys.modules)") == "False"


def test_torchvision_and_a_model_import_after_the_package():
    """In the process of the tests: `conftest.py` imports the package before either."""
    import torchvision  # noqa: F401
    from transformers import BertForSequenceClassification, ViTForImageClassification  # noqa: F401

    assert "_BeforeTorchvision" not in {type(finder).__name__ for finder in sys.meta_path}
