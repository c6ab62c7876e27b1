"""Published trainings to compare with, one method a file."""
