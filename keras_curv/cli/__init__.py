"""The commands: `keras_curv certify`, `train` and `reproduce`; start with `main.py`."""
