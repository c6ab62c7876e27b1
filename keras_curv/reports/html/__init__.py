"""A certification run as one HTML file, for people: start with `page.py`."""
