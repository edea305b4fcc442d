"""Does a row change its bits with what stands beside it in the batch (vllm#51902, #54035)? Reported, no failure."""

import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
}


def main():
    if not torch.cuda.is_available():
        print("not run: needs a CUDA device")
        return 0
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(64, 8, 1024, 64, generator=generator, device="cuda").to(torch.bfloat16) for _ in range(3))
    for name, backend in BACKENDS.items():
        try:
            with sdpa_kernel([backend]):
                outputs = [torch.nn.functional.scaled_dot_product_attention(q[:n], k[:n], v[:n])[0] for n in (1, 3, 64)]
        except RuntimeError as error:
            print(f"not run: {name}: {str(error).splitlines()[0][:80]}")
            continue
        same = all(torch.equal(outputs[0], o) for o in outputs[1:])
        print(
            f"{'right' if same else 'REPRODUCED'}: {name}: batch-invariant: {'yes' if same else 'no'} (batch 1, 3, 64)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
