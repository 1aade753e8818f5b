"""The TorchInductor side: the only folder that imports ``torch._inductor``.

Imports nothing by itself, so that `runtime`, which generated code imports, stays light.
"""
