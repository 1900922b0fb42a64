"""solo: train one model on machines joined by ordinary networks."""

__version__ = "0.1.0"
