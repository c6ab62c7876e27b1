"""What the commands share: quiet start, errors in one line, exit statuses."""

import contextlib
import os
import signal
import sys

from absl import app, flags, logging


def run(main, name, go_on="go on with --resume if there is an --output"):
    """Runs a command: `main()` with the flags parsed, its result as exit status.

    Args:
        go_on: what to do after an interruption.
    """
    stop_in_one_line(name, go_on)
    app.run(lambda argv: call(main, name, argv), flags_parser=lambda argv: parse(name, argv))


def stop_in_one_line(name, go_on):
    """SIGINT and SIGTERM end the process at once, after a line, with status 130 and 143.

    As nothing is cleaned up, nothing can go wrong while it is; what is written survives a kill.
    """
    try:
        stderr = os.dup(2)  # which `quiet_stderr` leaves alone
    except OSError:
        stderr = os.open(os.devnull, os.O_WRONLY)
    words = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}

    def stop(number, frame):
        line = f"{name}: {words[number]}; {go_on}\n"
        with contextlib.suppress(OSError):
            os.write(stderr, line.encode())
        os._exit(128 + number)

    for number in words:
        signal.signal(number, stop)


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
        status = main()
        if not status:
            print(end="", flush=True)
        return status
    except InputError as error:
        return fail(name, error)
    except OSError as error:  # whatever cannot be written, as stdout
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
