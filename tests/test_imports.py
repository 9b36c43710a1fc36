"""Files import one way: no circle among them, imports inside of functions included."""

from __future__ import annotations

import grimp
import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components


def test_no_files_import_each_other_in_a_circle():
    graph = grimp.build_graph("lrputils", cache_dir=None)
    files = sorted(graph.modules)
    pairs = [
        (files.index(file), files.index(other))
        for file in files
        for other in graph.find_modules_directly_imported_by(file)
    ]
    edges = coo_array((np.ones(len(pairs)), tuple(zip(*pairs, strict=True))), (len(files),) * 2)
    _, groups = connected_components(edges, connection="strong")
    circles = [np.array(files)[groups == group].tolist() for group in np.unique(groups)]
    assert [circle for circle in circles if len(circle) > 1] == []
