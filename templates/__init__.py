"""FlyDSL kernels: plain Python, one file a pipeline. Importing this package needs no flydsl."""
