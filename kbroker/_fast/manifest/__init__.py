"""Records of the manifest in columns: applied to the image, and gathered for encoding."""
