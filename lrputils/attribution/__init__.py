"""The attribution methods, one file for each kind, and the registry that names them."""

from lrputils.attribution.gradients import IntegratedGradients, integrated_gradients
from lrputils.attribution.registry import METHODS, Method, Option, attribute

__all__ = [
    "METHODS",
    "IntegratedGradients",
    "Method",
    "Option",
    "attribute",
    "integrated_gradients",
]
