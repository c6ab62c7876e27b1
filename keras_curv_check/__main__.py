"""`python -m keras_curv_check`."""

from keras_curv_check.cli import main

main()
