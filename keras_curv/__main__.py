"""`python -m keras_curv` is `keras_curv`."""

from keras_curv.cli.main import main

if __name__ == "__main__":
    main()
