"""Published methods to compare with, one to a file; none is used by the rest of the library."""
