"""Certificates from linear bounds of the layers."""
