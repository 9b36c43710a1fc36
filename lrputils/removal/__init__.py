"""Tokens taken away: exact Leave-One-Out, perturbation curves and the gradient of a gate."""
