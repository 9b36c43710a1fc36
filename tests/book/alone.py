"""What a fork of a bare process runs. It imports nothing of the project: that would hide a gap."""

import io
import runpy
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing.connection import Connection


def say_help(command: str, heard: Connection) -> None:
    """Send the status, words and complaints of `python -m command --help`."""
    assert "lrputils" not in sys.modules
    said, complaints, status = io.StringIO(), io.StringIO(), 0
    module, *verb = command.split()
    sys.argv = [module, *verb, "--help"]
    with redirect_stdout(said), redirect_stderr(complaints):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            status = traceback.format_exc()
    heard.send((status, said.getvalue(), complaints.getvalue()))
