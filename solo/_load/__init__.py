"""How ``solo.load`` does it: one file a concern, the public names are in ``solo/load.py``."""
