"""The one exception that means "the input is at fault, not the program"."""


class InputError(ValueError):
    """A model, an example or an option that cannot be used as given.

    The message is one line that names the thing, says what was received and what
    would work; the command line prints it as it is and exits with status 2.
    """
