"""A plugin of pytest: the processor has the instructions that the kernels use.

For kernels that were built with the header beside this.
"""

import torch

INSTRUCTIONS = dict.fromkeys(("avx2", "avx512_vl", "avx512_bf16", "amx_bf16"), True)

torch.cpu.get_capabilities = lambda: INSTRUCTIONS
