"""What fused updates of several algorithms share: kernels of layers and Adam, their cache, what they cover."""
