"""Published methods to compare with, one to a file."""
