"""Weights in and out: of other runs, SB3 zips and ONNX."""
