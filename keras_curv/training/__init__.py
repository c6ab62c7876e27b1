"""Models, callbacks and recipes that train for certified robustness."""
