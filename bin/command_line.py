"""What the commands share: quiet start, errors in one line, exit statuses."""

import contextlib
import os
import sys

from absl import app, flags, logging


def run(main, name):
    """Runs a command: `main()` with the flags parsed, its result as exit status."""
    try:
        app.run(lambda argv: call(main, name, argv), flags_parser=lambda argv: parse(name, argv))
    except KeyboardInterrupt:
        print(f"{name}: interrupted; go on with --resume if there is an --output", file=sys.stderr)
        sys.exit(130)


def parse(name, argv):
    """The arguments left over; exits with a line and status 2 for a flag that is wrong."""
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        sys.exit(fail(name, error))


def call(main, name, argv):
    """What `main()` returns, or 2 after a line on bad input."""
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
