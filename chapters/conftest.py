"""`pytest --nbval chapters` compares text and integers exactly, floats to a tolerance."""

from lrputils.book import nbval_numbers

nbval_numbers.install()
