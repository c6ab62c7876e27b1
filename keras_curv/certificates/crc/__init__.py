"""CRC: the curvature certificate, its searches and its variants."""
