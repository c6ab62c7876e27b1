"""What the commands share: quiet start, errors in one line, exit statuses."""

import contextlib
import os
import sys

from absl import app, flags, logging


def run(main, name):
    """Parses the flags and runs `main(argv)`; exits with 2 after a line for bad input."""

    def parse_flags(argv):
        try:
            return flags.FLAGS(argv)
        except flags.Error as error:
            sys.exit(fail(name, error))

    def guarded(argv):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        logging.set_verbosity(logging.ERROR)
        with quiet_stderr():
            from keras_curv.errors import InputError
        try:
            if len(argv) > 1:
                raise InputError(f"unexpected argument {argv[1]!r}; see --help")
            return main()
        except InputError as error:
            return fail(name, error)

    try:
        app.run(guarded, flags_parser=parse_flags)
    except KeyboardInterrupt:
        print(f"{name}: interrupted; go on with --resume if there is an --output", file=sys.stderr)
        sys.exit(130)


def fail(name, error):
    """One line on stderr, and the exit status of bad input."""
    print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr)
    return 2


@contextlib.contextmanager
def quiet_stderr():
    """TensorFlow's libraries greet on file descriptor 2 while they load; errors are one line."""
    try:
        kept = os.dup(2)
    except OSError:  # there is no stderr
        yield
        return
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
