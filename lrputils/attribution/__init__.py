"""The attribution methods, one file for each kind, and the registry that names them."""

from lrputils.attribution import attention_maps, relevance  # they enter their methods
from lrputils.attribution.dispatch import attribute
from lrputils.attribution.gradients import IntegratedGradients, integrated_gradients
from lrputils.attribution.registry import METHODS, Method, Option, method

__all__ = [
    "METHODS",
    "IntegratedGradients",
    "Method",
    "Option",
    "attribute",
    "integrated_gradients",
    "method",
]
