"""The leaf that ``import torch`` calls through the entry-point group ``torch.backends``."""


def load() -> None:
    """Register what torch needs to know of solo; never raises."""
