"""Reports of a run for people: the terminal, a plot, a page."""
