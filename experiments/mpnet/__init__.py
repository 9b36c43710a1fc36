"""How the twelve-layer classifiers of the recorded runs are assembled."""
