"""What a person sees of a run: the terminal, a plot, a page."""
