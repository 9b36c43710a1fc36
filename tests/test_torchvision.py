"""What importing the package does to torch and torchvision: nothing, and what torchvision needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run(code: str, path: str | Path = "") -> str:
    places = os.pathsep.join(filter(None, [str(path), os.environ.get("PYTHONPATH", "")]))
    own = {**os.environ, "PYTHONPATH": places}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=own
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_imports_no_torch():
    assert run("import sys, lrputils; print('torch' in sys.modules)") == "False"


def test_a_torchvision_whose_extension_does_not_load_imports_after_the_package(tmp_path):
    """The pinned environment has none: this is what the registry's build for CUDA does."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "_C.so").write_bytes(b"built for another torch")
    (tmp_path / "torchvision" / "__init__.py").write_text(
        "import torch\ntorch.library.register_fake('torchvision::nms')(lambda *a: None)\n"
    )
    code = "import {}sys, torchvision; print(len(sys.meta_path))"
    assert run(code.format("lrputils, "), tmp_path)
    assert "does not exist" in run(
        "try:\n    import torchvision\nexcept RuntimeError as error:\n    print(error)", tmp_path
    )
