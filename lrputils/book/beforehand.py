"""What can be known to fail before a kernel starts: the model, the data, the device.

The data are read by the package's own loading functions, so the message is the one that the running
chapter would give.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from nbformat import NotebookNode

from lrputils.book.layout import BookError
from lrputils.book.parameters import declared


def check_inputs(notebook: NotebookNode, chapter: str, given: Mapping[str, Any]) -> None:
    """Find the model, the data and the device that a chapter is given; defaults are taken as good.

    Raises:
        BookError: one of them is not there, or cannot be read; the message says which and why.
    """
    values = {name: p.default for name, p in declared(notebook, chapter).items()} | dict(given)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    try:
        if "load_texts(dataset" in code:
            from lrputils.data.texts import load_texts

            taken = inspect.signature(load_texts).parameters.keys() - {"revision"}  # the model's
            if taken & given.keys():
                load_texts(**{name: values[name] for name in taken & values.keys()})
        if "load_images(" in code and values["dataset"] not in ("digits", "mnist"):
            from lrputils.data.images import load_images

            load_images(values["dataset"], side=2)
        if "load_classifier(" in code and values.get("model") is not None:
            from lrputils.data import hub

            settings = ["config.json", "adapter_config.json"]
            hub.find_model(values["model"], lambda _: settings, "model", values.get("revision"))
        if values.get("device", "cpu") not in ("auto", "cpu"):
            _find_device(values["device"])
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise BookError(f"{chapter}: {error}") from error


def _find_device(device: str) -> None:
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device={device!r} cannot be used here: {reason}") from None
