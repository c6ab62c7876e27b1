"""Certificates, one method of proof a file: from an input to a radius that is proved."""
