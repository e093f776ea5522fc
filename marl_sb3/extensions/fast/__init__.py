"""The algorithms of this package whose policies act and update in compiled kernels, where these cover them."""
