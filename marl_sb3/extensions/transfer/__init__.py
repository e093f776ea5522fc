"""Take initial weights from runs and SB3 zips; export policies to SB3 zips and ONNX."""
